package agent

import (
	"testing"

	"github.com/stretchr/testify/require"

	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
)

// Agents announce every feature that the control plane of their release may require.
func TestFeatures_AreAllAnnounced(t *testing.T) {
	announced := Config{Isolates: true, SpansHosts: true}.featureNames()
	for n, name := range agentv1.Feature_name {
		if n != 0 {
			require.Contains(t, announced, name, "if every runtime supports it, add it to runtime.Features, otherwise to Config.features")
		}
	}
	require.NotContains(t, Config{}.featureNames(), agentv1.Feature_FEATURE_INSTANCE_ISOLATION.String())
	require.NotContains(t, Config{}.featureNames(), agentv1.Feature_FEATURE_UNIT_HOSTS.String())
	require.NotContains(t, Config{}.featureNames(), agentv1.Feature_FEATURE_GANG.String())
	require.NotContains(t, Config{}.featureNames(), agentv1.Feature_FEATURE_TOPOLOGY.String())
}
