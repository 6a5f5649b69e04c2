package cli

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestExplainCommand(t *testing.T) {
	run := func(args ...string) (string, error) {
		var out bytes.Buffer
		root := New(Config{Stdout: &out, Stderr: &out, Getenv: func(string) string { return "" }})
		root.SetArgs(append([]string{"explain"}, args...))
		err := root.ExecuteContext(t.Context())
		return out.String(), err
	}
	t.Run("a reason in every part", func(t *testing.T) {
		out, err := run("no-capacity")
		require.NoError(t, err)
		require.Equal(t, `ERROR_REASON_NO_CAPACITY (Error reasons)
Cause:  a region has too little free of what is asked for
See:    the error of the call, which names the field, the object or the limit
Do:     ask for less, or set `+"`rollout.waitForCapacity`"+`
Page:   https://github.com/windlass-run/windlass/blob/main/docs/guides/troubleshooting.md#error-reasons
`, out)
	})
	t.Run("a code of gateways", func(t *testing.T) {
		out, err := run("no_route")
		require.NoError(t, err)
		require.Contains(t, out, "no_route (Answers of gateways)\nCause:  status 404: ")
	})
	t.Run("a reason with which an agent waits", func(t *testing.T) {
		for _, reason := range []string{"AwaitingGateways", "Draining", "Adopting"} {
			out, err := run(reason)
			require.NoError(t, err)
			require.Contains(t, out, reason+" (Reasons of deployments, rollouts and regions)")
		}
	})
	t.Run("links become paths", func(t *testing.T) {
		out, err := run("Unsupported")
		require.NoError(t, err)
		require.Contains(t, out, "see pod policy\n        (docs/guides/kubernetes.md#what-a-pod-may-ask-for)")
	})
	t.Run("all reasons", func(t *testing.T) {
		out, err := run()
		require.NoError(t, err)
		require.Contains(t, out, "NO_CAPACITY")
		require.Contains(t, out, "WaveBegun")
	})
	t.Run("an unknown reason names near ones", func(t *testing.T) {
		_, err := run("capacity")
		require.ErrorContains(t, err, "did you mean NO_CAPACITY, CapacityAwaited, CapacityFound?")
		_, err = run("NotRoutabel")
		require.EqualError(t, err, "no reason is called \"NotRoutabel\": did you mean NotRoutable? `windlass explain` lists all")
		_, err = run("Nonesuch")
		require.EqualError(t, err, "no reason is called \"Nonesuch\": `windlass explain` lists all")
	})
}
