package plan

import (
	"fmt"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
)

// lintWorkloads: a workload is wanted by one row of a region at the most, or its
// instances would go back and forth between two.
func lintWorkloads(in Input, out Output) (findings []string) {
	after := make(map[rowKey]model.Topology, len(in.Topology))
	for _, rows := range [][]model.Topology{in.Topology, out.Topology} {
		for _, t := range rows {
			after[rowKey{t.DeploymentID, t.RegionID}] = t
		}
	}
	owners := make(map[rowKey]string, len(after))
	for _, key := range sortedRows(after) {
		t := after[key]
		if !t.Told() {
			continue
		}
		workload := rowKey{t.WorkloadKey(), key.region}
		if other, wanted := owners[workload]; wanted {
			findings = append(findings, fmt.Sprintf("%s: %s and %s are to run with workload %s", key.region, other, key.deployment, t.WorkloadKey()))
			continue
		}
		owners[workload] = key.deployment
	}
	return findings
}
