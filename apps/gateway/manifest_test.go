package gateway

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"github.com/stretchr/testify/require"
)

// TestManifest_IsWhatTheProgramUnderstands: Kubernetes takes any variable, and a
// program that does not know one ignores it.
func TestManifest_IsWhatTheProgramUnderstands(t *testing.T) {
	data, err := os.ReadFile(filepath.Join("..", "..", "deployments", "kubernetes", "gateway.yaml"))
	require.NoError(t, err)
	set := regexp.MustCompile(`\{name: (WINDLASS_\w+), value: "?([^"}]*)"?\}`).FindAllStringSubmatch(string(data), -1)
	require.Greater(t, len(set), 6)
	var f flags
	parser, err := kong.New(&f, kong.Vars{"version": "test"})
	require.NoError(t, err)
	known := map[string]bool{}
	for _, flag := range parser.Model.Flags {
		for _, env := range flag.Envs {
			known[env] = true
		}
	}
	for _, s := range set {
		require.True(t, known[s[1]], "%s is no flag's", s[1])
		t.Setenv(s[1], s[2]) // those that are commented out, too
	}
	_, err = parser.Parse(nil)
	require.NoError(t, err)
	require.NoError(t, f.checkFlags())
	require.Equal(t, agentFlags{CA: "/agent/ca.crt", Cert: "/agent/tls.crt", Key: "/agent/tls.key"}, f.AgentTLS)
	require.Equal(t, []string{":8080"}, f.Listen)
	grace, err := strconv.Atoi(regexp.MustCompile(`terminationGracePeriodSeconds: (\d+)`).FindStringSubmatch(string(data))[1])
	require.NoError(t, err)
	require.Less(t, f.DrainDelay+f.DrainTimeout, time.Duration(grace)*time.Second, "the drain fits into the grace")
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
