package plan

import (
	"fmt"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
)

// lintWorkloads checks two rules. At most one row of a region wants a workload. Otherwise, the workload's instances
// would go back and forth between two rows. A row that transferred its workload gets another workload only after the
// region has released the transferred one. If the region applied the row before the successor, the instances would have
// no owner.
func lintWorkloads(in Input, out Output) (findings []string) {
	after := make(map[rowKey]model.Topology, len(in.Topology))
	for _, rows := range [][]model.Topology{in.Topology, out.Topology} {
		for _, t := range rows {
			after[rowKey{t.DeploymentID, t.RegionID}] = t
		}
	}
	f := newFacts(in, 0)
	owners := make(map[rowKey]string, len(after))
	for _, key := range sortedRows(after) {
		t := after[key]
		if !t.Assigned() {
			continue
		}
		workload := rowKey{t.WorkloadKey(), key.region}
		if was := f.before[key]; was.Transferred && isRowActive(&was) && was.WorkloadKey() != t.WorkloadKey() && !mainView(f).sideOf(&was).Known {
			findings = append(findings, fmt.Sprintf("%s: %s should run with workload %s, but may still have %s", key.region, key.deployment, t.WorkloadKey(), was.WorkloadKey()))
		}
		if other, wanted := owners[workload]; wanted {
			findings = append(findings, fmt.Sprintf("%s: %s and %s should run with workload %s", key.region, other, key.deployment, t.WorkloadKey()))
			continue
		}
		owners[workload] = key.deployment
	}
	return findings
}
