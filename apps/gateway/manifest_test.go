package gateway

import (
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/pkg/charttest"
)

// The program must know each environment variable of the manifest, because it ignores unknown variables without an
// error.
func TestManifest_SetsOnlyKnownVariables(t *testing.T) {
	all := charttest.Containers(t, filepath.Join("..", ".."), "Deployment", "gateway")
	require.Len(t, all, 3)
	for file, c := range all {
		t.Run(file, func(t *testing.T) {
			require.Greater(t, len(c.Env), 6)
			var f flags
			parser, err := newParser(&f)
			require.NoError(t, err)
			c.SetEnv(t)
			_, err = parser.Parse(c.Args)
			require.NoError(t, err)
			require.NoError(t, f.checkFlags())
			if strings.HasPrefix(f.Agent, "https:") {
				require.Equal(t, agentFlags{CA: "/agent/ca.crt", Cert: "/agent/tls.crt", Key: "/agent/tls.key"}, f.AgentTLS)
			}
			require.Equal(t, []string{":8080"}, f.Listen)
			grace, err := strconv.Atoi(regexp.MustCompile(`terminationGracePeriodSeconds: (\d+)`).FindStringSubmatch(c.Text)[1])
			require.NoError(t, err)
			require.Less(t, f.DrainDelay+f.DrainTimeout, time.Duration(grace)*time.Second, "the drain must end within the grace period")
		})
	}
}

func TestAgentFlags(t *testing.T) {
	for want, test := range map[string]struct {
		agent string
		flags agentFlags
	}{
		"use https:// with --agent-ca, --agent-cert and --agent-key, or --agent-insecure": {"http://agent:7720", agentFlags{}},
		"--agent-cert and --agent-key: give both or neither":                              {"https://agent:7720", agentFlags{Cert: "a"}},
		"--agent-ca: CA certificates: open no-such-file":                                  {"https://agent:7720", agentFlags{CA: "no-such-file"}},
		"are for an https:// URL":                                                         {"unix:gateway.sock", agentFlags{CA: "a"}},
	} {
		_, err := test.flags.openTLS(test.agent, nil)
		require.ErrorContains(t, err, want)
	}
	for agent, flags := range map[string]agentFlags{"http://agent:7720": {Insecure: true}, "http://127.0.0.1:7720": {}, "unix:gateway.sock": {}, "https://agent:7720": {}} {
		_, err := flags.openTLS(agent, nil)
		require.NoError(t, err, agent)
	}
}
