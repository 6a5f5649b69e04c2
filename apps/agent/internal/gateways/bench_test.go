package gateways

import (
	"fmt"
	"testing"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
)

// BenchmarkLookAfterOneChange measures how long the search for changed apps takes after the
// instances of one deployment changed, in regions with few and with many deployments.
func BenchmarkLookAfterOneChange(b *testing.B) {
	for _, deployments := range []int{100, 3000} {
		b.Run(fmt.Sprintf("deployments=%d", deployments), func(b *testing.B) {
			table := newTable(func(string) *agentv1.DeploymentState { return nil })
			var seen []runtime.ObservedDeployment
			for n := range deployments {
				id := fmt.Sprintf("dep_%032d", n)
				seen = append(seen, runtime.ObservedDeployment{DeploymentID: id, Instances: []runtime.Instance{{ID: id}}})
				table.setRoute(&agentv1.Routes{AppId: id, Hosts: []string{id}, Targets: []*agentv1.RouteTarget{{DeploymentId: id, Weight: 1}}}, 1, 1)
			}
			table.setObserved(seen)
			b.ReportAllocs()
			for n := 0; b.Loop(); n++ {
				d := &seen[n%deployments]
				d.Instances = []runtime.Instance{{ID: d.DeploymentID, Restarts: n}}
				table.setObserved(seen)
			}
		})
	}
}
