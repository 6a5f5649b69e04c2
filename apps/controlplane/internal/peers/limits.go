package peers

import "github.com/windlass-run/windlass/pkg/rpc"

const (
	// maxCallBytes and maxCallElements fit the largest call: the loads and deployments of maxLoadItems with all their
	// histograms, or a nudge with maxNames regions and as many apps. A text counts as an element for each 8 bytes.
	maxCallBytes    = 8 << 20
	maxCallElements = 500_000
)

// Limits returns the limits of calls of peers, for the server of Handler. budget bounds the bytes of all calls that are
// under way. nil: they are not bounded.
func Limits(budget *rpc.Budget) func(procedure string) rpc.Limits {
	return func(string) rpc.Limits {
		return rpc.Limits{MessageBytes: maxCallBytes, Elements: maxCallElements, Budget: budget}
	}
}
