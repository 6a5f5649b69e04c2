//go:build linux || darwin

package conns

import "syscall"

// descriptorLimit returns how many file descriptors the process may have. 0: not known.
func descriptorLimit() int {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 0
	}
	return int(min(limit.Cur, 1<<30))
}
