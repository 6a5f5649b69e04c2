package agent

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
)

func TestClusterFlags_NameMistakes(t *testing.T) {
	dir := t.TempDir()
	pools := func(text string) string {
		path := filepath.Join(dir, t.Name()+".yaml")
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	for name, test := range map[string]struct {
		change func(*clusterFlags)
		want   []string
	}{
		"negative time": {
			func(c *clusterFlags) { c.ForceDeleteLostAfter = -time.Minute },
			[]string{"--force-delete-lost-after=-1m0s", "use 0 for never, or a positive time such as 10m"},
		},
		"a Gateway without a namespace": {
			func(c *clusterFlags) { c.GatewayAPI = "public" },
			[]string{`--gateway-api="public"`, "use NAMESPACE/NAME of a Gateway"},
		},
		"a selector of another kind": {
			func(c *clusterFlags) { c.GatewaySelector = "pod:app=gateway,node:a=b" },
			[]string{`--gateway-selector="pod:app=gateway,node:a=b"`, `"node:a=b" is none of pod:LABEL=VALUE, namespace:LABEL=VALUE, cidr:PREFIX`},
		},
		"a monitoring selector of another kind": {
			func(c *clusterFlags) { c.MonitoringSelector = "node:a=b" },
			[]string{`--monitoring-selector="node:a=b"`, `"node:a=b" is none of pod:LABEL=VALUE`},
		},
		"a monitoring selector with a bad prefix": {
			func(c *clusterFlags) { c.MonitoringSelector = "cidr:10.0.0.0/99" },
			[]string{`--monitoring-selector="cidr:10.0.0.0/99"`, "10.0.0.0/99"},
		},
		"a label without a value": {
			func(c *clusterFlags) { c.GatewaySelector = "pod:app" },
			[]string{`"pod:app" is none of pod:LABEL=VALUE`},
		},
		"a bad prefix": {
			func(c *clusterFlags) { c.GatewaySelector = "cidr:10.0.0.0/99" },
			[]string{`--gateway-selector="cidr:10.0.0.0/99"`, "10.0.0.0/99"},
		},
		"a file that does not exist": {
			func(c *clusterFlags) { c.PoolsFile = filepath.Join(dir, "none.yaml") },
			[]string{"--pools-file", "none.yaml", "no such file"},
		},
		"a pools file with other content": {
			func(c *clusterFlags) { c.PoolsFile = pools("pool: h100\n") },
			[]string{"--pools-file=", `"pool"`},
		},
		"a pod policy file with other content": {
			func(c *clusterFlags) { c.PodPolicyFile = pools("privilegd: true\n") },
			[]string{"--pod-policy-file=", `"privilegd"`},
		},
		"a topology without a label": {
			func(c *clusterFlags) { c.Topology = "zone=topology.kubernetes.io/zone,rack" },
			[]string{"--topology=", `"rack" is not WORD=LABEL`},
		},
		"a topology with a word twice": {
			func(c *clusterFlags) { c.Topology = "rack=a,rack=b" },
			[]string{"--topology=", `the word "rack" occurs twice`},
		},
		"a topology with a word that no app can have": {
			func(c *clusterFlags) { c.Topology = "Rack=example.com/rack" },
			[]string{"--topology=", `"Rack" is not a valid word`},
		},
		"a topology with a label that no node can have": {
			func(c *clusterFlags) { c.Topology = "rack=a/b/c" },
			[]string{"--topology=", `rack="a/b/c": it is not a valid label name`},
		},
		"a namespace prefix that is invalid": {
			func(c *clusterFlags) { c.NamespacePrefix = "Windlass_" },
			[]string{`--namespace-prefix="Windlass_"`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := clusterFlags{NamespacePrefix: "windlass-"}
			test.change(&c)
			_, err := c.runtimeConfig()
			for _, part := range test.want {
				require.ErrorContains(t, err, part)
			}
		})
	}
}

func TestClusterFlags_ReachTheRuntime(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pools.yaml")
	require.NoError(t, os.WriteFile(path, []byte("pools: [{name: h100, nodeSelector: {pool: h100}, quota: 8}]"), 0o600))
	cfg, err := clusterFlags{
		NamespacePrefix: "wl-", PoolsFile: path, ForceDeleteLostAfter: time.Minute,
		GatewaySelector:    "pod:app=gateway, namespace:team=edge,pod:tier=front,cidr:10.0.0.0/8,cidr:fd00::/8",
		MonitoringSelector: "namespace:team=observability",
		Gangs:              "native",
		Topology:           "zone=topology.kubernetes.io/zone, rack=example.com/rack,",
	}.runtimeConfig()
	require.NoError(t, err)
	require.Equal(t, "wl-", cfg.NamespacePrefix)
	require.Equal(t, time.Minute, cfg.ForceDeleteLostAfter)
	require.Equal(t, render.GatewaySelector{
		PodLabels: map[string]string{"app": "gateway", "tier": "front"}, NamespaceLabels: map[string]string{"team": "edge"},
		CIDRs: []string{"10.0.0.0/8", "fd00::/8"},
	}, cfg.Gateway)
	require.Equal(t, []render.GatewaySelector{{NamespaceLabels: map[string]string{"team": "observability"}}}, cfg.Monitoring)
	require.Equal(t, map[string]string{"pool": "h100"}, cfg.Pools["h100"].NodeSelector)
	require.Equal(t, kubernetes.GangsByScheduler, cfg.GangsBy)
	require.Equal(t, map[string]string{"zone": "topology.kubernetes.io/zone", "rack": "example.com/rack"}, cfg.Topology)

	cfg, err = clusterFlags{NamespacePrefix: "windlass-"}.runtimeConfig()
	require.NoError(t, err)
	require.Empty(t, cfg.Pools)
	require.Empty(t, cfg.Gateway)
	require.Empty(t, cfg.Monitoring)
}
