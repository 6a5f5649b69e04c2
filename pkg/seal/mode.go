package seal

import (
	"fmt"
	"io/fs"
	"os"
	"slices"
)

// access is what decides whether a key file is private enough. uid and gid are the file's owner and group;
// known is false where the platform does not tell them.
type access struct {
	mode     fs.FileMode
	uid, gid int
	known    bool
	// groups are those of the process.
	groups []int
}

// check fails when users other than the file's owner can reach the file. Like ssh it wants mode 0600 or
// less. Like PostgreSQL it makes one exception: root's file may be read by a group, which is how Kubernetes
// mounts a Secret for a pod with an fsGroup (mode 0440). The group must be one of the process' own: a
// group that the process is not in was not given the file for its sake. A file of another owner gets no
// exception, because its owner could change the key, and a group can be one of many users.
func (a access) check(path string) error {
	perm := a.mode.Perm()
	const others, groupReads = fs.FileMode(0o077), fs.FileMode(0o040)
	if perm&others == 0 {
		return nil
	}
	if perm&others == groupReads && a.known && a.uid == 0 {
		if slices.Contains(a.groups, a.gid) {
			return nil
		}
		return fmt.Errorf("key file %s has mode %04o and group %d, which this process is not in: chmod 600 it, or give it a group of the process (fsGroup in Kubernetes)", path, perm, a.gid)
	}
	return fmt.Errorf("key file %s has mode %04o, and others than its owner can reach it: chmod 600 it, or 400. Only a file of root may be read by a group of this process (mode 0440 or 0640)", path, perm)
}

// accessOf is how the process has the file.
func accessOf(info fs.FileInfo) (access, error) {
	a := access{mode: info.Mode()}
	a.uid, a.gid, a.known = ownerOf(info)
	if !a.known {
		return a, nil
	}
	groups, err := os.Getgroups()
	if err != nil {
		return a, fmt.Errorf("groups of this process: %w", err)
	}
	a.groups = slices.Concat(groups, []int{os.Getegid()})
	return a, nil
}
