package agent

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime/process"
)

func TestIsolation(t *testing.T) {
	const uids = "2100000000-2100065535"
	t.Run("flags that contradict each other are refused with the fix", func(t *testing.T) {
		for _, c := range []struct {
			flags hostFlags
			uid   int
			says  string
		}{
			{hostFlags{InstanceUIDs: "1-2"}, 0, `--instance-uids="1-2": use FIRST-LAST`},
			{hostFlags{InstanceUIDs: uids, InstanceGroups: []string{"no-such-group"}}, 0, `this host has no group "no-such-group"`},
			{hostFlags{InstanceUIDs: uids, InstanceGroups: []string{"root"}}, 0, `"root" is root's group`},
			{hostFlags{InstanceUIDs: uids, InstanceGroups: []string{"tty"}}, 1000, "run it as root, or leave the flag out"},
			{hostFlags{InstanceUIDs: uids, InstanceGroups: []string{"tty"}, TrustAllTenants: true}, 0, "leave one of them out"},
			{hostFlags{InstanceUIDs: uids, PortIsolation: "require"}, 1000, "--port-isolation=require: instances run as the agent's user"},
			{hostFlags{InstanceUIDs: uids, PortIsolation: "require", TrustAllTenants: true}, 0, "run the agent as root without --trust-all-tenants"},
			{hostFlags{InstanceUIDs: uids}, 0, "or let all instances run as root with --trust-all-tenants"},
		} {
			_, err := c.flags.isolationOf(c.uid, "/tmp/windlass")
			require.ErrorContains(t, err, c.says)
		}
	})
	t.Run("without root, or with --trust-all-tenants, nothing is isolated", func(t *testing.T) {
		for _, c := range []struct {
			flags hostFlags
			uid   int
		}{{hostFlags{InstanceUIDs: uids}, 1000}, {hostFlags{InstanceUIDs: uids, TrustAllTenants: true}, 0}} {
			got, err := c.flags.isolationOf(c.uid, "/tmp/windlass")
			require.NoError(t, err)
			require.Nil(t, got)
		}
	})
	t.Run("root isolates", func(t *testing.T) {
		if os.Getuid() != 0 {
			t.Skip("needs root")
		}
		got, err := hostFlags{InstanceUIDs: uids, InstanceGroups: []string{"tty", "4242"}}.isolationOf(0, "/var/lib/windlass")
		require.NoError(t, err)
		require.Equal(t, process.IDRange{First: 2100000000, Last: 2100065535}, got.IDs)
		require.Len(t, got.Groups, 2)
		require.Equal(t, 4242, got.Groups[1])
		require.Equal(t, []string{"/var/lib/windlass"}, got.Hide)
	})
}
