package runtime

import (
	"testing"

	"github.com/stretchr/testify/require"

	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
)

// What a release's control plane may require, its agents know.
func TestFeatures_AreAllAnnounced(t *testing.T) {
	for n, name := range agentv1.Feature_name {
		// An agent of a host isolates instances or not, as it was started.
		if n != 0 && agentv1.Feature(n) != agentv1.Feature_FEATURE_INSTANCE_ISOLATION {
			require.Contains(t, Features(), name, "teach every runtime what it is about, and name it among the features")
		}
	}
}
