package process

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// confineThread prepares the calling thread to fork an instance that runs as u. The thread enters its own
// mount and IPC namespaces. There, it sees the instance's own directories, but no other directories
// of the agent, no other temporary files and no processes of other users. Programs that it runs
// cannot gain privileges. The caller stays locked to the thread.
func confineThread(u *user) error {
	if err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_NEWIPC); err != nil {
		return fmt.Errorf("make namespaces: %w", err)
	}
	// Later mounts of the host are visible here, but mounts that are made here are not visible on
	// the host.
	if err := unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := coverDirectories(u); err != nil {
		return err
	}
	if err := mountOver("tmpfs", "/dev/shm", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777"); err != nil {
		return err
	}
	// The kernel's log names processes of others.
	if err := unix.Mount(os.DevNull, "/dev/kmsg", "", unix.MS_BIND, ""); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("hide /dev/kmsg: %w", err)
	}
	// The instance's own queues. A kernel without them returns ENODEV.
	err := mountOver("mqueue", "/dev/mqueue", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return err
	}
	// Kernels before 5.8 cannot set this option for a single mount, and refuse this syntax.
	err = mountOver("proc", "/proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "hidepid=invisible")
	if err != nil && !errors.Is(err, unix.EINVAL) {
		return err
	}
	// The instance must not use keys of the agent's session. A kernel without keyrings returns
	// ENOSYS.
	if _, _, errno := unix.Syscall(unix.SYS_KEYCTL, unix.KEYCTL_JOIN_SESSION_KEYRING, 0, 0); errno != 0 && errno != unix.ENOSYS {
		return fmt.Errorf("leave the session's keyring: %w", errno)
	}
	for c := uintptr(0); ; c++ {
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); errors.Is(err, unix.EINVAL) {
			break // this capability does not exist, nor do higher ones
		} else if err != nil {
			return fmt.Errorf("drop capabilities: %w", err)
		}
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("set no_new_privs: %w", err)
	}
	if err := scopeSockets(); err != nil {
		return err
	}
	if err := filterCalls(); err != nil {
		return err
	}
	// The group of an environment lets its instances share their cache. Other users get no access.
	unix.Umask(0o007)
	return nil
}

// scopeSockets prevents the calling thread's programs from using abstract Unix sockets of other
// processes. Such sockets have no file, and so no owner. Kernels before 6.12, and kernels without
// Landlock, do not support this.
func scopeSockets() error {
	const withScopes = 6 // the version of Landlock
	version, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 || version < withScopes {
		return nil
	}
	attr := unix.LandlockRulesetAttr{Scoped: unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET}
	size := unsafe.Offsetof(attr.Scoped) + unsafe.Sizeof(attr.Scoped)
	rules, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), size, 0)
	if errno != 0 {
		return fmt.Errorf("make rules for sockets: %w", errno)
	}
	defer func() { _ = unix.Close(int(rules)) }()
	if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, rules, 0, 0); errno != 0 {
		return fmt.Errorf("apply rules for sockets: %w", errno)
	}
	return nil
}

// coverDirectories hides the directories u.Hide. It shows u.Keep and u.Temp in their places.
func coverDirectories(u *user) error {
	// The directories are opened before they are covered. This thread must open them, because the
	// kernel binds only directories of the thread's namespace.
	binds := maps.Clone(u.Temp)
	if binds == nil {
		binds = map[string]string{}
	}
	for _, dir := range u.Keep {
		binds[dir] = dir
	}
	fds := map[string]int{}
	defer func() {
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
	}()
	for at, dir := range binds {
		fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
		if err != nil {
			return fmt.Errorf("open %s: %w", dir, err)
		}
		fds[at] = fd
	}
	for _, dir := range u.Hide {
		if err := mountOver("tmpfs", dir, unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0755,size=64k"); err != nil {
			return err
		}
	}
	for _, at := range slices.Sorted(maps.Keys(fds)) {
		if slices.ContainsFunc(u.Hide, func(h string) bool { return isWithin(at, h) }) {
			if err := os.MkdirAll(at, 0o755); err != nil {
				return fmt.Errorf("show %s: %w", at, err)
			}
		}
		if err := unix.Mount(fmt.Sprintf("/proc/self/fd/%d", fds[at]), at, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount %s: %w", at, err)
		}
	}
	for _, dir := range u.Hide {
		if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
			return fmt.Errorf("hide %s: %w", dir, err)
		}
	}
	return nil
}

// mountOver mounts a file system on a directory of the host, if the directory exists.
func mountOver(kind, at string, flags uintptr, options string) error {
	err := unix.Mount(kind, at, kind, flags, options)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("mount %s on %s: %w", kind, at, err)
	}
	return nil
}

// isWithin reports whether path is dir or below it.
func isWithin(path, dir string) bool {
	rel, err := filepath.Rel(dir, path)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, "../")
}
