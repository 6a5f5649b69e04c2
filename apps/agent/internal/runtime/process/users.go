package process

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

const (
	usersFile = "users.json"
	cachesDir = "caches"
	// userBlock is how many ids are reserved with one write. A restarted agent skips the rest of
	// the block.
	userBlock = 64
)

// IDRange is a range of user and group ids, including its ends.
type IDRange struct{ First, Last int }

func (r IDRange) contains(id int) bool { return id >= r.First && id <= r.Last }

func (r IDRange) String() string { return fmt.Sprintf("%d-%d", r.First, r.Last) }

// ParseIDRange reads FIRST-LAST.
func ParseIDRange(s string) (IDRange, error) {
	first, last, _ := strings.Cut(s, "-")
	a, aerr := strconv.Atoi(first)
	b, berr := strconv.Atoi(last)
	// The kernel reserves -1 and the end of the signed numbers. Ids below 1000 belong to the host.
	if aerr != nil || berr != nil || a < 1000 || b > 1<<31-2 || b-a+1 < minUsers {
		return IDRange{}, fmt.Errorf("%q: use FIRST-LAST with at least %d ids from 1000 to 2147483646, for example 2100000000-2100065535", s, minUsers)
	}
	return IDRange{a, b}, nil
}

// minUsers is the minimum size of a range. It is enough for the instances of a host, so that an id
// is used again only after a long time.
const minUsers = 1024

// users assigns user ids, one per instance, and group ids, one per environment. An id is used again
// only after the whole range was used, and not while an instance, a process or a cache has it.
type users struct {
	dir string
	ids IDRange
	// busy returns the users of the range that have processes.
	busy func(IDRange) (map[int]bool, error)

	mu    sync.Mutex
	state userState
	// next is the next id to try. state.Next is the id from which the next agent starts.
	next int
	uses map[int]string // id -> instance
}

// userState has everything that the next agent must know.
type userState struct {
	Next   int            `json:"next"`
	Groups map[string]int `json:"groups,omitempty"` // by environment
}

func openUsers(dir string, ids IDRange) (*users, error) {
	state, _, err := readJSON[userState](dir, usersFile)
	if err != nil {
		return nil, err
	}
	if state.Groups == nil {
		state.Groups = map[string]int{}
	}
	if !ids.contains(state.Next) {
		state.Next = ids.First
	}
	return &users{dir: dir, ids: ids, busy: processUsers, state: state, next: state.Next, uses: map[int]string{}}, nil
}

// restoreUser records the user of an instance that an earlier agent started.
func (u *users) restoreUser(r record) {
	if u == nil || r.UID == 0 {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.uses[r.UID] = r.ID
}

// claimUser gives r a user and the group of its environment. It keeps a user that r has already.
func (u *users) claimUser(r *record, environment string) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	uid, gid := r.UID, u.state.Groups[environment]
	if u.ids.contains(uid) && u.uses[uid] == r.ID && u.ids.contains(gid) {
		r.GID = gid
		return nil
	}
	busy, err := u.busy(u.ids)
	if err != nil {
		return err
	}
	if !u.ids.contains(gid) {
		if gid, err = u.take(busy); err != nil {
			return err
		}
		u.state.Groups[environment] = gid
		if err := u.saveFile(); err != nil {
			delete(u.state.Groups, environment)
			return err
		}
	}
	if !u.ids.contains(uid) || u.uses[uid] != r.ID {
		if uid, err = u.take(busy); err != nil {
			return err
		}
		u.uses[uid] = r.ID
	}
	r.UID, r.GID = uid, gid
	return nil
}

// take returns the next free id. The caller holds mu.
func (u *users) take(busy map[int]bool) (int, error) {
	groups := map[int]bool{}
	for _, gid := range u.state.Groups {
		groups[gid] = true
	}
	for range u.ids.Last - u.ids.First + 1 {
		id := u.next
		if id == u.state.Next {
			before := u.state.Next
			if u.state.Next += userBlock; u.state.Next > u.ids.Last {
				u.state.Next = u.ids.First
			}
			if err := u.saveFile(); err != nil {
				u.state.Next = before
				return 0, err
			}
		}
		if u.next++; u.next > u.ids.Last {
			u.next = u.ids.First
		}
		if u.uses[id] == "" && !groups[id] && !busy[id] {
			return id, nil
		}
	}
	return 0, fmt.Errorf("all user ids of %s are in use: give the agent a larger range with --instance-uids", u.ids)
}

func (u *users) saveFile() error { return writeJSON(u.dir, usersFile, u.state, true) }

func (u *users) release(r record) {
	if u == nil {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.uses[r.UID] == r.ID {
		delete(u.uses, r.UID)
	}
}

func (u *users) cacheDir(gid int) string { return filepath.Join(u.dir, cachesDir, strconv.Itoa(gid)) }

// makeCache makes the directory that the instances of a group share.
func (u *users) makeCache(gid int) error {
	dir := u.cacheDir(gid)
	err := os.MkdirAll(dir, 0o700)
	if err == nil {
		err = errors.Join(os.Chown(dir, 0, gid), os.Chmod(dir, 0o770|fs.ModeSetgid))
	}
	if err != nil {
		return fmt.Errorf("make the cache of an environment: %w", err)
	}
	return nil
}

// keepGroups forgets the groups of all other environments, and deletes their caches.
func (u *users) keepGroups(environments map[string]bool) error {
	if u == nil {
		return nil
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	var gone []string
	for e, gid := range u.state.Groups {
		if environments[e] {
			continue
		}
		// The group is forgotten last, so that it is not used again while files have it.
		if err := os.RemoveAll(u.cacheDir(gid)); err != nil {
			return fmt.Errorf("delete the cache of an environment: %w", err)
		}
		gone = append(gone, e)
	}
	if len(gone) == 0 {
		return nil
	}
	for _, e := range gone {
		delete(u.state.Groups, e)
	}
	return u.saveFile()
}

// lockDir has one file for each range of ids that an agent of this host uses.
const lockDir = "/run/windlass"

// lockIDs makes this process the only agent of the host that uses the range, because two agents
// would give the same user to two instances.
func lockIDs(dir string, ids IDRange) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	const prefix = "ids-"
	mine := prefix + ids.String()
	lock, err := tryLock(filepath.Join(dir, mine))
	if err != nil && !errors.Is(err, errLocked) {
		return nil, err
	}
	others, rerr := os.ReadDir(dir)
	if rerr != nil {
		err = rerr
	}
	for _, e := range others {
		if err != nil {
			break
		}
		name, ok := strings.CutPrefix(e.Name(), prefix)
		other, perr := ParseIDRange(name)
		if !ok || perr != nil || e.Name() == mine || other.Last < ids.First || other.First > ids.Last {
			continue
		}
		var f *os.File
		if f, err = tryLock(filepath.Join(dir, e.Name())); err == nil {
			_ = f.Close()
		}
	}
	if err != nil {
		if lock != nil {
			_ = lock.Close()
		}
		if errors.Is(err, errLocked) {
			err = fmt.Errorf("another agent of this host uses ids of %s: give each agent its own range with --instance-uids", ids)
		}
		return nil, err
	}
	return lock, nil
}

// namedID returns the entry of a user database of the host whose id is in the range, or "" if there
// is none.
func namedID(ids IDRange) string {
	for _, path := range []string{"/etc/passwd", "/etc/group", "/etc/subuid", "/etc/subgid"} {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // the host does not have this database
		}
		for line := range strings.Lines(string(b)) {
			f := strings.Split(strings.TrimSpace(line), ":")
			if len(f) < 3 {
				continue
			}
			first, count := f[2], "1"
			if strings.HasPrefix(path, "/etc/sub") {
				first, count = f[1], f[2]
			}
			a, aerr := strconv.Atoi(first)
			n, nerr := strconv.Atoi(count)
			if aerr == nil && nerr == nil && a <= ids.Last && a+n-1 >= ids.First {
				return f[0] + " in " + path
			}
		}
	}
	return ""
}

// processUsers returns the users of a range that have processes.
func processUsers(ids IDRange) (map[int]bool, error) {
	dirs, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("read the users of processes: %w", err)
	}
	found := map[int]bool{}
	for _, d := range dirs {
		pid, err := strconv.Atoi(d.Name())
		if err != nil {
			continue
		}
		for _, uid := range usersOf(pid) {
			if ids.contains(uid) {
				found[uid] = true
			}
		}
	}
	return found, nil
}

// usersOf returns the real, effective, saved and file system user of a process, or nothing if the
// process does not exist. The owner of /proc/PID is not enough, because it is root for a process
// that is not dumpable.
func usersOf(pid int) []int {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return nil
	}
	var out []int
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) != 5 || f[0] != "Uid:" {
			continue
		}
		for _, s := range f[1:] {
			if uid, err := strconv.Atoi(s); err == nil && !slices.Contains(out, uid) {
				out = append(out, uid)
			}
		}
		break
	}
	return out
}

// maxNested is how deep directories of an instance may be nested. chownTree opens one file for each level.
const maxNested = 1000

// chownTree gives a directory and everything in it to a user. The directory itself comes last, so
// that an interrupted run is repeated. A file with several names is skipped, because it may belong
// to another user. Another instance of the environment may have access to the directory, and may
// replace directories by symbolic links meanwhile. So each file is opened below the directory.
func chownTree(dir string, uid, gid int) error {
	owner, group, err := ownerOf(dir)
	if err != nil || owner == uid && group == gid {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close() //nolint:errcheck // nothing is written to it
	if err := chownBelow(root, ".", uid, gid, 0); err != nil {
		return err
	}
	return os.Lchown(dir, uid, gid)
}

// chownBelow gives everything in a directory of root to a user. It reads the directory in parts,
// because the instance may have made any number of files.
func chownBelow(root *os.Root, dir string, uid, gid, depth int) error {
	if depth > maxNested {
		return fmt.Errorf("directories are nested more than %d deep", maxNested)
	}
	// O_DIRECTORY does not wait for the writer of a pipe.
	f, err := root.OpenFile(dir, os.O_RDONLY|syscall.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // read only
	for {
		names, err := f.Readdirnames(1024)
		for _, name := range names {
			if err := chownOne(root, filepath.Join(dir, name), uid, gid, depth); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// chownOne gives a file of root, or a directory with everything in it, to a user.
func chownOne(root *os.Root, path string, uid, gid, depth int) error {
	info, err := root.Lstat(path)
	if err != nil {
		return err
	}
	st, err := statOf(info)
	switch {
	case err != nil:
		return err
	case info.IsDir():
		if err := chownBelow(root, path, uid, gid, depth+1); err != nil {
			return err
		}
	case st.Nlink > 1:
		return nil
	}
	return root.Lchown(path, uid, gid)
}

func ownerOf(path string) (uid, gid int, err error) {
	info, err := os.Lstat(path)
	if err != nil {
		return 0, 0, err
	}
	st, err := statOf(info)
	if err != nil {
		return 0, 0, err
	}
	return int(st.Uid), int(st.Gid), nil
}

func statOf(info fs.FileInfo) (*syscall.Stat_t, error) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil, fmt.Errorf("read the owner of %s: %w", info.Name(), fs.ErrInvalid)
	}
	return st, nil
}
