package process

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

func TestParseIDRange(t *testing.T) {
	ids, err := ParseIDRange("2100000000-2100065535")
	require.NoError(t, err)
	require.Equal(t, IDRange{2100000000, 2100065535}, ids)
	for _, s := range []string{"", "5", "2000-", "0-65535", "2000-2100", "5000-2000", "2000000-2147483647", "a-b", "-1000-5000"} {
		_, err := ParseIDRange(s)
		require.ErrorContains(t, err, "use FIRST-LAST with at least 1024 ids from 1000 to 2147483646", s)
	}
}

func openTestUsers(t require.TestingT, dir string, ids IDRange, busy map[int]bool) *users {
	u, err := openUsers(dir, ids)
	require.NoError(t, err)
	u.busy = func(IDRange) (map[int]bool, error) { return busy, nil }
	return u
}

func TestUsers(t *testing.T) {
	ids := IDRange{10000, 10015}
	claim := func(t *testing.T, u *users, id, environment string) record {
		t.Helper()
		r := record{ID: id}
		require.NoError(t, u.claimUser(&r, environment))
		return r
	}
	t.Run("one user per instance, one group per environment, over restarts", func(t *testing.T) {
		dir := t.TempDir()
		u := openTestUsers(t, dir, ids, nil)
		a, b, c := claim(t, u, "a", "prod"), claim(t, u, "b", "prod"), claim(t, u, "c", "staging")
		require.Equal(t, a.GID, b.GID)
		require.NotEqual(t, a.GID, c.GID)
		require.Len(t, map[int]bool{a.UID: true, b.UID: true, c.UID: true, a.GID: true, c.GID: true}, 5)
		again := a
		require.NoError(t, u.claimUser(&again, "prod"))
		require.Equal(t, a, again)

		next := openTestUsers(t, dir, ids, nil)
		next.restoreUser(a)
		require.NoError(t, next.claimUser(&again, "prod"))
		require.Equal(t, a, again)
		d := claim(t, next, "d", "prod")
		require.Equal(t, a.GID, d.GID)
		require.NotContains(t, []int{a.UID, a.GID, c.GID}, d.UID)
	})
	t.Run("an id is not given again while a process has it", func(t *testing.T) {
		u := openTestUsers(t, t.TempDir(), ids, map[int]bool{10001: true})
		a := claim(t, u, "a", "prod")
		require.Equal(t, []int{10000, 10002}, []int{a.GID, a.UID})
	})
	t.Run("a full range is an error that says what to do", func(t *testing.T) {
		u := openTestUsers(t, t.TempDir(), ids, nil)
		for i := range 15 {
			claim(t, u, strconv.Itoa(i), "prod")
		}
		err := u.claimUser(&record{ID: "x"}, "prod")
		require.ErrorContains(t, err, "all user ids of 10000-10015 are in use: give the agent a larger range with --instance-uids")
		u.release(record{ID: "3", UID: 10004})
		require.Equal(t, 10004, claim(t, u, "x", "prod").UID)
	})
	t.Run("a group ends with the last deployment of its environment, after its files", func(t *testing.T) {
		if os.Getuid() != 0 {
			t.Skip("only root can give a cache to a group")
		}
		dir := t.TempDir()
		u := openTestUsers(t, dir, ids, nil)
		a := claim(t, u, "a", "prod")
		require.NoError(t, u.makeCache(a.GID))
		require.NoError(t, os.WriteFile(filepath.Join(u.cacheDir(a.GID), "model"), nil, 0o600))
		require.NoError(t, u.keepGroups(map[string]bool{"prod": true}))
		require.FileExists(t, filepath.Join(u.cacheDir(a.GID), "model"))
		require.NoError(t, u.keepGroups(nil))
		require.NoDirExists(t, u.cacheDir(a.GID))
		require.NotEqual(t, a.GID, claim(t, u, "b", "prod").GID)
	})
}

// Whatever instances begin and end, and however often the agent is killed, no two instances that
// exist at the same time have the same user. No user is the group of another environment.
func TestUsersProperty(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		_ = os.Remove(filepath.Join(dir, usersFile))
		ids := IDRange{10000, 10000 + rapid.IntRange(10, 200).Draw(t, "size")}
		u := openTestUsers(t, dir, ids, nil)
		live := map[string]record{}
		for n := range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch rapid.IntRange(0, 4).Draw(t, "what") {
			case 0, 1, 2:
				r := record{ID: strconv.Itoa(n)}
				if u.claimUser(&r, rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "environment")) != nil {
					require.Greater(t, len(live)+4, ids.Last-ids.First)
					continue
				}
				require.True(t, ids.contains(r.UID) && ids.contains(r.GID))
				for _, other := range live {
					require.NotEqual(t, other.UID, r.UID)
					require.NotEqual(t, other.GID, r.UID)
				}
				live[r.ID] = r
			case 3:
				for id, r := range live {
					u.release(r)
					delete(live, id)
					break
				}
			case 4:
				u = openTestUsers(t, dir, ids, nil)
				for _, r := range live {
					u.restoreUser(r)
				}
			}
		}
	})
}

func TestLockIDs(t *testing.T) {
	dir := t.TempDir()
	lock, err := lockIDs(dir, IDRange{10000, 20000})
	require.NoError(t, err)
	for _, ids := range []IDRange{{10000, 20000}, {15000, 30000}, {20000, 30000}} {
		_, err = lockIDs(dir, ids)
		require.ErrorContains(t, err, "another agent of this host uses ids of "+ids.String())
	}
	other, err := lockIDs(dir, IDRange{20001, 30000})
	require.NoError(t, err)
	require.NoError(t, other.Close())
	require.NoError(t, lock.Close())
	lock, err = lockIDs(dir, IDRange{15000, 25000})
	require.NoError(t, err)
	require.NoError(t, lock.Close())
}

// Another instance of the environment may change a directory while the agent gives it to the next user.
func TestChownTree_NeverLeavesTheDirectory(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root may give files away")
	}
	const uid = 12345
	outside, dir := t.TempDir(), filepath.Join(t.TempDir(), "slot")
	host := filepath.Join(outside, "host")
	require.NoError(t, os.WriteFile(host, nil, 0o600))
	inner := filepath.Join(dir, "a", "b")
	require.NoError(t, os.MkdirAll(inner, 0o755))
	for _, name := range []string{"host", "\xff", "kept"} {
		require.NoError(t, os.WriteFile(filepath.Join(inner, name), nil, 0o600))
	}
	require.NoError(t, os.Symlink(host, filepath.Join(dir, "link")))
	require.NoError(t, unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600))
	require.NoError(t, os.Symlink(outside, filepath.Join(dir, "a", "away")))

	swapped := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(swapped)
		for {
			select {
			case <-done:
				return
			default:
				_ = unix.Renameat2(unix.AT_FDCWD, inner, unix.AT_FDCWD, filepath.Join(dir, "a", "away"), unix.RENAME_EXCHANGE)
			}
		}
	}()
	for n := range 2000 {
		_ = chownTree(dir, uid+n, uid) // it may fail, and is then tried again
	}
	close(done)
	<-swapped
	owner, _, err := ownerOf(host)
	require.NoError(t, err)
	require.Zero(t, owner)

	require.NoError(t, chownTree(dir, uid-1, uid))
	for _, name := range []string{".", "a", "link", "pipe"} {
		owner, group, err := ownerOf(filepath.Join(dir, name))
		require.NoError(t, err)
		require.Equal(t, []int{uid - 1, uid}, []int{owner, group}, name)
	}
	owner, _, err = ownerOf(host)
	require.NoError(t, err)
	require.Zero(t, owner)
}
