package runtime

import (
	"testing"

	"github.com/stretchr/testify/require"

	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
)

// What a release's control plane may require, its agents know.
func TestAnAgentAnnouncesEveryFeatureThatItsReleaseHasAWordFor(t *testing.T) {
	for n, name := range agentv1.Feature_name {
		if n != 0 {
			require.Contains(t, Features(), name, "teach every runtime what it is about, and name it among the features")
		}
	}
}
