package seal

import (
	"fmt"
	"io/fs"
	"os"
	"slices"
)

// access has the facts that decide whether a key file is private enough. uid and gid are the file's owner and group.
// known is false if the platform does not provide uid and gid.
type access struct {
	mode     fs.FileMode
	uid, gid int
	known    bool
	// groups are the groups of the process.
	groups []int
}

// checkAccess returns an error if users other than the file's owner can access the file. Like ssh, it requires mode
// 0600 or less. Like PostgreSQL, it makes one exception: a group of this process may read a file of root.
// Kubernetes mounts a Secret this way for a pod with an fsGroup (mode 0440). The process must be in the group,
// because otherwise the group was not chosen for this process. A file of another owner gets no exception, because
// its owner could change the key, and a group may have many users.
func (a access) checkAccess(path string) error {
	perm := a.mode.Perm()
	const others, groupReads = fs.FileMode(0o077), fs.FileMode(0o040)
	if perm&others == 0 {
		return nil
	}
	if perm&others == groupReads && a.known && a.uid == 0 {
		if slices.Contains(a.groups, a.gid) {
			return nil
		}
		return fmt.Errorf("key file %s has mode %04o and group %d, and this process is not in the group: chmod 600 it, or give it a group of the process (fsGroup in Kubernetes)", path, perm, a.gid)
	}
	return fmt.Errorf("key file %s has mode %04o, so users other than its owner can access it: chmod 600 it, or 400. A group of this process may read only a file of root (mode 0440 or 0640)", path, perm)
}

// accessOf returns the access to a file.
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
