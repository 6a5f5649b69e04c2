package seal

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestKeyFileMode(t *testing.T) {
	const user, group, other = 65532, 2000, 3000
	for name, test := range map[string]struct {
		access

		want string
	}{
		"owner alone":                                 {access{mode: 0o600, uid: user, gid: other, known: true}, ""},
		"owner alone, read-only":                      {access{mode: 0o400, uid: 0, gid: other, known: true}, ""},
		"a Secret with fsGroup":                       {access{mode: 0o440, uid: 0, gid: group, known: true, groups: []int{user, group}}, ""},
		"a file of root, and a group that may read":   {access{mode: 0o640, uid: 0, gid: group, known: true, groups: []int{group}}, ""},
		"a group that the process is not in":          {access{mode: 0o440, uid: 0, gid: other, known: true, groups: []int{user, group}}, "group 3000, and this process is not in the group"},
		"a file of a user, and a group that may read": {access{mode: 0o440, uid: user, gid: group, known: true, groups: []int{group}}, "chmod 600 it"},
		"a group that may write":                      {access{mode: 0o660, uid: 0, gid: group, known: true, groups: []int{group}}, "chmod 600 it"},
		"a group that may execute":                    {access{mode: 0o450, uid: 0, gid: group, known: true, groups: []int{group}}, "chmod 600 it"},
		"a Secret without fsGroup":                    {access{mode: 0o644, uid: 0, gid: 0, known: true, groups: []int{0}}, "chmod 600 it"},
		"everybody":                                   {access{mode: 0o444, uid: 0, gid: group, known: true, groups: []int{group}}, "chmod 600 it"},
		"an unknown owner":                            {access{mode: 0o440, groups: []int{0}}, "chmod 600 it"},
	} {
		err := test.access.checkAccess("keyset.json")
		if test.want == "" {
			require.NoError(t, err, name)
			continue
		}
		require.ErrorContains(t, err, test.want, name)
	}
}

// A mounted Secret consists of links to files of root with the pod's group.
func TestKeyFile_MountedSecret(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give files to groups")
	}
	dir := t.TempDir()
	path, link := filepath.Join(dir, "..data"), filepath.Join(dir, "keyset.json")
	require.NoError(t, Create(path))
	require.NoError(t, os.Symlink(path, link))
	require.NoError(t, os.Chmod(path, 0o440))
	require.NoError(t, os.Chown(path, 0, 2000))
	_, err := Load(link)
	require.ErrorContains(t, err, "group 2000, and this process is not in the group")

	groups, err := os.Getgroups()
	require.NoError(t, err)
	require.NoError(t, syscall.Setgroups(append(groups, 2000)))
	t.Cleanup(func() { require.NoError(t, syscall.Setgroups(groups)) })
	_, err = Load(link)
	require.NoError(t, err)
	for _, mode := range []fs.FileMode{0o460, 0o444, 0o644} {
		require.NoError(t, os.Chmod(path, mode))
		_, err = Load(link)
		require.ErrorContains(t, err, "chmod 600 it")
	}
	require.NoError(t, os.Chmod(path, 0o440))
	require.NoError(t, os.Chown(path, 65532, 2000))
	_, err = Load(link)
	require.ErrorContains(t, err, "may read only a file of root")
}
