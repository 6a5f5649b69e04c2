package plan

import (
	"fmt"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
)

// lintWorkloads: a workload is wanted by one row of a region at the most, or its
// instances would go back and forth between two. And a row that handed its own over has
// another only when the region has let go of that: taken before the heir, what it runs would
// be nobody's.
func lintWorkloads(in Input, out Output) (findings []string) {
	after := make(map[rowKey]model.Topology, len(in.Topology))
	for _, rows := range [][]model.Topology{in.Topology, out.Topology} {
		for _, t := range rows {
			after[rowKey{t.DeploymentID, t.RegionID}] = t
		}
	}
	p := newPlanner(in, 0)
	owners := make(map[rowKey]string, len(after))
	for _, key := range sortedRows(after) {
		t := after[key]
		if !t.Told() {
			continue
		}
		workload := rowKey{t.WorkloadKey(), key.region}
		if was := p.before[key]; was.HandedOver && active(&was) && was.WorkloadKey() != t.WorkloadKey() && !p.main().side(&was).Known {
			findings = append(findings, fmt.Sprintf("%s: %s is to run with workload %s, and may have %s still", key.region, key.deployment, t.WorkloadKey(), was.WorkloadKey()))
		}
		if other, wanted := owners[workload]; wanted {
			findings = append(findings, fmt.Sprintf("%s: %s and %s are to run with workload %s", key.region, other, key.deployment, t.WorkloadKey()))
			continue
		}
		owners[workload] = key.deployment
	}
	return findings
}
