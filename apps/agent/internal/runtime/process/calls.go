package process

import (
	"errors"
	"fmt"
	goruntime "runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// callNumbers has the numbers of system calls that filterCalls checks.
type callNumbers struct {
	arch                       uint32 // the kernel's number of the processor's architecture
	socket, socketPair, syslog uint32
	// socketCall is the call by which old programs make sockets. 0: the architecture has none.
	socketCall uint32
}

// allNumbers has the numbers for programs of 64 and of 32 bits, by the agent's architecture.
var allNumbers = map[string][2]callNumbers{
	"amd64": {
		{arch: unix.AUDIT_ARCH_X86_64, socket: 41, socketPair: 53, syslog: 103},
		{arch: unix.AUDIT_ARCH_I386, socket: 359, socketPair: 360, syslog: 103, socketCall: 102},
	},
	"arm64": {
		{arch: unix.AUDIT_ARCH_AARCH64, socket: 198, socketPair: 199, syslog: 116},
		{arch: unix.AUDIT_ARCH_ARM, socket: 281, socketPair: 288, syslog: 103},
	},
}

// ioUringSetup is the number of io_uring_setup on all architectures.
const ioUringSetup = 425

// x32 is the first number of the calls of programs with 32-bit pointers on amd64.
const x32 = 0x40000000

// filterCalls refuses system calls to the programs that the calling thread starts:
//
//   - Sockets of other families than Unix, IPv4, IPv6 and netlink. The guard of ports does not know
//     the sockets that the kernel makes for some of them, such as AF_RXRPC.
//   - Sockets of netlink's connector. They report the starts, names and ends of all processes of the
//     host to every user.
//   - io_uring, which can make sockets without this filter. Container runtimes refuse it by default.
//   - syslog, because the kernel's log names processes of others.
//
// A kernel without filters, and other architectures than amd64 and arm64, refuse nothing.
func filterCalls() error {
	all, ok := allNumbers[goruntime.GOARCH]
	if !ok {
		return nil
	}
	// Offsets in the kernel's struct seccomp_data. The lower half of an argument comes first.
	const number, arch, arg0, arg2 = 0, 4, 16, 32
	const equal = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
	refuse := func(errno unix.Errno) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(errno)}
	}
	load := func(at uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: at}
	}
	// unless skips instructions if the loaded value is not k.
	unless := func(k uint32, skip uint8) unix.SockFilter {
		return unix.SockFilter{Code: equal, K: k, Jf: skip}
	}
	allow := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW}
	var filter []unix.SockFilter
	for _, n := range all {
		rules := []unix.SockFilter{
			load(number),
			{Code: unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K, K: x32, Jf: 1},
			refuse(unix.ENOSYS),
			unless(ioUringSetup, 1),
			refuse(unix.EPERM),
			unless(n.syslog, 1),
			refuse(unix.EPERM),
		}
		if n.socketCall != 0 {
			rules = append(rules, unless(n.socketCall, 1), refuse(unix.ENOSYS))
		}
		rules = append(
			rules,
			unix.SockFilter{Code: equal, K: n.socket, Jt: 2},
			unix.SockFilter{Code: equal, K: n.socketPair, Jt: 1},
			allow,
			load(arg0),
			unless(unix.AF_UNIX, 1),
			allow,
			unless(unix.AF_INET, 1),
			allow,
			unless(unix.AF_INET6, 1),
			allow,
			unless(unix.AF_NETLINK, 4),
			load(arg2),
			unless(unix.NETLINK_CONNECTOR, 1),
			refuse(unix.EPERM),
			allow,
			refuse(unix.EAFNOSUPPORT),
		)
		filter = append(append(filter, load(arch), unless(n.arch, uint8(len(rules)))), rules...)
	}
	filter = append(filter, refuse(unix.ENOSYS)) // another architecture
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	// Without this flag, kernels before 5.16 slow down filtered programs (spec_store_bypass_disable).
	const flags = unix.SECCOMP_FILTER_FLAG_SPEC_ALLOW
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&program)))
	if errno != 0 && !errors.Is(errno, unix.ENOSYS) && !errors.Is(errno, unix.EINVAL) {
		return fmt.Errorf("filter system calls: %w", errno)
	}
	return nil
}
