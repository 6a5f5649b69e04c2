package process_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/process"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/process/portguard"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// attackEnv makes the test binary an instance that tries to access things of others.
const attackEnv = "WINDLASS_TEST_ATTACK"

// namespaceEnv makes the test binary attack as the root of a user namespace.
const namespaceEnv = "WINDLASS_TEST_ATTACK_NAMESPACE"

// takePortEnv makes the test binary listen at this port, and print the result.
const takePortEnv = "WINDLASS_TEST_TAKE_PORT"

// targets has everything that an attacker wants to reach, so that the attacker need not guess
// names.
type targets struct {
	VictimPID, ShimPID, AgentPID int
	DataDir, VictimDir           string
	SharedMemory                 int // the key of the shared memory
	VictimPort                   int
	TryPorts                     bool
	Abstract                     string // a socket without a file; empty: the kernel cannot isolate such sockets
	HostSocket                   string // a socket of the host's D-Bus
	Queue                        string // a message queue of the host, and a key of the agent
	// DataDirHandle and its type are the number of the data directory in its file system.
	DataDirHandle     []byte
	DataDirHandleType int32
}

func say(words ...any) { _, _ = fmt.Fprintln(os.Stdout, words...) }

// attack prints a line for each successful access, and then "tried".
func attack() int {
	var to targets
	if err := json.Unmarshal([]byte(os.Getenv(attackEnv)), &to); err != nil {
		say("GOT no targets:", err)
		return 1
	}
	got := func(what string, err error) {
		if err == nil {
			say("GOT", what)
		}
	}
	read := func(path string) error { _, err := os.ReadFile(path); return err }
	opens := func(path string) error {
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err == nil {
			_ = f.Close()
		}
		return err
	}
	list := func(path string) error {
		entries, err := os.ReadDir(path)
		if err == nil && len(entries) == 0 {
			err = os.ErrNotExist
		}
		return err
	}
	for _, fd := range descriptors() {
		say("GOT the descriptor", fd)
	}
	for name, pid := range map[string]int{"victim": to.VictimPID, "its shim": to.ShimPID, "the agent": to.AgentPID} {
		proc := fmt.Sprintf("/proc/%d/", pid)
		for _, file := range []string{"environ", "cmdline", "maps", "root/etc/hostname", "fd/0"} {
			got(file+" of "+name, read(proc+file))
		}
		got("the directory of "+name, list(proc+"cwd"))
		got("a signal to "+name, unix.Kill(pid, 0))
		got("ptrace of "+name, seize(pid))
		one := make([]byte, 1)
		_, err := unix.ProcessVMReadv(pid, []unix.Iovec{{Base: &one[0], Len: 1}}, []unix.RemoteIovec{{Base: 0x400000, Len: 1}}, 0)
		got("the memory of "+name, err)
		_, err = unix.ProcessVMWritev(pid, []unix.Iovec{{Base: &one[0], Len: 1}}, []unix.RemoteIovec{{Base: 0x400000, Len: 1}}, 0)
		got("write into the memory of "+name, err)
		got("mem of "+name, opens(proc+"mem"))
		got("the limits of "+name, unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &unix.Rlimit{}))
		got("a descriptor of "+name, descriptorOf(pid))
		got("a signal by a descriptor to "+name, signalByDescriptor(pid))
		got("the namespaces of "+name, enter(pid))
		got("a comparison with "+name, compare(pid))
		got("counters of "+name, count(pid))
		got("the pages of "+name, pagesOf(pid))
		got("the group of "+name, unix.Setpgid(pid, 0))
		if pid == to.AgentPID {
			continue // where tenants are trusted, the next attack would slow down the test
		}
		got("the priority of "+name, unix.Setpriority(unix.PRIO_PROCESS, pid, 19))
		var processors unix.CPUSet
		processors.Set(0)
		got("the processors of "+name, unix.SchedSetaffinity(pid, &processors))
	}
	got("the victim's port", takePort(to.VictimPort))
	if to.TryPorts {
		for _, host := range []string{"127.0.0.1", "::1", "::ffff:127.0.0.1"} {
			got("a call of the victim at "+host, callPort(host, to.VictimPort))
		}
	}
	for _, file := range []string{"output.log", "work/private", "work/new"} {
		got("to write "+file+" of the victim", os.WriteFile(filepath.Join(to.VictimDir, file), nil, 0o600))
	}
	sees := func(dir, name string) {
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			if e.Name() == name {
				say("GOT a list with", name)
			}
		}
	}
	sees(to.DataDir, "credential.json")
	sees(filepath.Dir(to.VictimDir), filepath.Base(to.VictimDir))
	got("the credential", read(filepath.Join(to.DataDir, "credential.json")))
	_, err := net.Dial("unix", filepath.Join(to.DataDir, "gateway.sock"))
	got("the gateways' socket", err)
	if to.Abstract != "" {
		_, err = net.Dial("unix", to.Abstract)
		got("a socket without a file", err)
	}
	for _, file := range []string{"record.json", "output.log", "work/private"} {
		got(file+" of the victim", read(filepath.Join(to.VictimDir, file)))
	}
	for _, file := range []string{"/tmp/windlass-victim", "/var/tmp/windlass-victim", "/dev/shm/windlass-victim", "/run/lock/windlass-victim"} {
		got(file, read(file))
	}
	_, err = net.Dial("unix", to.HostSocket)
	got("a socket of the host", err)
	got("a message queue", openQueue(to.Queue, 0))
	sees("/dev/mqueue", to.Queue)
	got("a key of the agent", findKey(to.Queue))
	got("a watch of the victim's files", watch(filepath.Join(to.VictimDir, "work")))
	got("a watch of the agent's files", watch(filepath.Join(to.DataDir, "credential.json")))
	for name, kind := range map[string][3]int{
		"packets": {unix.AF_PACKET, unix.SOCK_RAW, 0}, "raw packets": {unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_UDP},
		"raw packets of IPv6": {unix.AF_INET6, unix.SOCK_RAW, unix.IPPROTO_TCP}, "the audit": {unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_AUDIT},
		"RxRPC": {unix.AF_RXRPC, unix.SOCK_DGRAM, unix.AF_INET}, "TIPC": {unix.AF_TIPC, unix.SOCK_RDM, 0}, "virtual machines": {unix.AF_VSOCK, unix.SOCK_STREAM, 0},
		"the kernel's ciphers": {unix.AF_ALG, unix.SOCK_SEQPACKET, 0},
	} {
		got(name, openSocket(kind))
	}
	got("events of processes", followProcesses())
	got("io_uring", makeRing())
	_, err = unix.Klogctl(unix.SYSLOG_ACTION_READ_ALL, make([]byte, 100))
	got("the kernel's log", err)
	got("the kernel's log in a file", readSome("/dev/kmsg"))
	for _, file := range controlFiles() {
		got("to write "+file, opens(file))
	}
	_, err = unix.SysvShmGet(to.SharedMemory, 1, 0)
	got("shared memory", err)

	attackInNamespace(to)

	got("root", unix.Setresuid(0, 0, 0))
	got("group root", unix.Setresgid(0, 0, 0))
	got("groups", unix.Setgroups([]int{0}))
	got("a mount", unix.Mount("tmpfs", "/mnt", "tmpfs", 0, ""))
	got("an unmount", unix.Unmount(to.DataDir, unix.MNT_DETACH))
	got("a root directory", unix.Chroot("."))
	status, err := os.ReadFile("/proc/self/status")
	got("no status", notThere(err))
	for line := range strings.Lines(string(status)) {
		f := strings.Fields(line)
		switch {
		case len(f) > 0 && f[0] == "Groups:" && len(f) > 1:
			say("GOT groups", f[1:])
		case strings.HasPrefix(line, "Cap") && strings.Trim(f[1], "0") != "":
			say("GOT capabilities", line)
		case strings.HasPrefix(line, "NoNewPrivs:") && f[1] != "1":
			say("GOT new privileges")
		}
	}

	// The instance must be able to use its own directories.
	for _, dir := range []string{".", os.Getenv("HOME"), os.Getenv("XDG_CACHE_HOME"), os.TempDir(), "/var/tmp", "/dev/shm"} {
		if err := os.WriteFile(filepath.Join(dir, "mine"), nil, 0o666); err != nil {
			say("LACKS", err)
		}
	}
	if err := read("/etc/passwd"); err != nil {
		say("LACKS", err)
	}
	if err := callOwnSocket(); err != nil {
		say("LACKS a socket without a file of its own:", err)
	}
	say("tried as user", os.Getuid(), os.Getgid())
	return serveHealth()
}

// descriptors returns the open descriptors that this process did not open itself.
func descriptors() (out []string) {
	entries, _ := os.ReadDir("/proc/self/fd")
	for _, e := range entries {
		n, _ := strconv.Atoi(e.Name())
		target, err := os.Readlink("/proc/self/fd/" + e.Name())
		own := strings.HasPrefix(target, "anon_inode:[event") || strings.HasPrefix(target, "/sys/fs/cgroup/") // of Go's runtime
		if n > 2 && err == nil && !own {
			out = append(out, e.Name()+" "+target)
		}
	}
	return out
}

func signalByDescriptor(pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	return unix.PidfdSendSignal(fd, 0, nil, 0)
}

// enter enters the mount namespace of a process with a thread, which ends afterwards.
func enter(pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	done := make(chan error)
	go func() {
		goruntime.LockOSThread()
		done <- errors.Join(unix.Unshare(unix.CLONE_FS), unix.Setns(fd, unix.CLONE_NEWNS))
	}()
	return <-done
}

func errnoOf(errno syscall.Errno) error {
	if errno == 0 {
		return nil
	}
	return errno
}

// compare asks whether a process has the same memory as this one.
func compare(pid int) error {
	const memory = 1 // KCMP_VM
	_, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(os.Getpid()), uintptr(pid), memory, 0, 0, 0)
	return errnoOf(errno)
}

// count counts the page faults of a process.
func count(pid int) error {
	fd, err := unix.PerfEventOpen(&unix.PerfEventAttr{
		Type: unix.PERF_TYPE_SOFTWARE, Size: unix.PERF_ATTR_SIZE_VER0, Config: unix.PERF_COUNT_SW_PAGE_FAULTS, Bits: unix.PerfBitExcludeKernel | unix.PerfBitExcludeHv,
	}, pid, -1, -1, 0)
	if err == nil {
		_ = unix.Close(fd)
	}
	return err
}

// pagesOf asks where the memory of a process is.
func pagesOf(pid int) error {
	page, status := uintptr(0x400000), int32(0)
	_, _, errno := unix.Syscall6(unix.SYS_MOVE_PAGES, uintptr(pid), 1, uintptr(unsafe.Pointer(&page)), 0, uintptr(unsafe.Pointer(&status)), 0)
	return errnoOf(errno)
}

// readSome reads a part of a file that may have no end.
func readSome(path string) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	n, err := unix.Read(fd, make([]byte, 8192))
	if err == nil && n == 0 {
		err = io.EOF
	}
	return err
}

// makeRing makes a queue of system calls (io_uring).
func makeRing() error {
	const setup = 425
	var params [120]byte
	fd, _, errno := unix.Syscall(setup, 1, uintptr(unsafe.Pointer(&params)), 0)
	if errno == 0 {
		_ = unix.Close(int(fd))
	}
	return errnoOf(errno)
}

// openQueue opens a POSIX message queue. It makes the queue if flags say so.
func openQueue(name string, flags int) error {
	b, err := unix.BytePtrFromString(name)
	if err != nil {
		return err
	}
	fd, _, errno := unix.Syscall6(unix.SYS_MQ_OPEN, uintptr(unsafe.Pointer(b)), uintptr(unix.O_RDWR|unix.O_CLOEXEC|flags), 0o666, 0, 0, 0)
	if errno == 0 {
		_ = unix.Close(int(fd))
	}
	return errnoOf(errno)
}

// findKey finds a key in the session's keyring.
func findKey(name string) error {
	_, err := unix.KeyctlSearch(unix.KEY_SPEC_SESSION_KEYRING, "user", name, 0)
	return err
}

func watch(path string) error {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	_, err = unix.InotifyAddWatch(fd, path, unix.IN_ALL_EVENTS)
	return err
}

func openSocket(kind [3]int) error {
	fd, err := unix.Socket(kind[0], kind[1]|unix.SOCK_CLOEXEC, kind[2])
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	if kind[0] == unix.AF_NETLINK {
		return unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1})
	}
	return nil
}

// followProcesses asks the kernel for the starts and ends of all processes, and waits for one. This
// process starts another one meanwhile.
func followProcesses() error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_CONNECTOR)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1}); err != nil {
		return err
	}
	order := binary.NativeEndian
	var b []byte
	b = order.AppendUint32(b, 40)
	b = order.AppendUint16(b, unix.NLMSG_DONE)
	b = append(b, make([]byte, 10)...)
	b = order.AppendUint32(b, 1) // CN_IDX_PROC
	b = order.AppendUint32(b, 1) // CN_VAL_PROC
	b = append(b, make([]byte, 8)...)
	b = order.AppendUint32(b, 4) // the length of the next number, and flags
	b = order.AppendUint32(b, 1) // PROC_CN_MCAST_LISTEN
	if err := unix.Sendto(fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	wait := unix.NsecToTimeval((200 * time.Millisecond).Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait); err != nil {
		return err
	}
	_ = exec.CommandContext(context.Background(), "/bin/true").Run()
	answer := make([]byte, 1024)
	for range 2 { // the first message acknowledges the order
		if _, err := unix.Read(fd, answer); err != nil {
			return err
		}
	}
	return nil
}

// controlFiles returns files by which processes move to other cgroups, or cgroups get other limits.
func controlFiles() (out []string) {
	for _, name := range []string{"cgroup.procs", "cgroup.kill", "cgroup.freeze", "tasks", "memory.max", "cpu.max"} {
		for dir := "/sys/fs/cgroup/"; len(dir) < 40; dir += "*/" {
			found, _ := filepath.Glob(dir + name)
			out = append(out, found...)
		}
	}
	return out
}

// attackInNamespace makes another process the root of its own user namespace, and lets it attack
// from there. Some hosts have no such namespaces.
func attackInNamespace(to targets) {
	b, err := json.Marshal(to)
	if err != nil {
		say("GOT no targets:", err)
		return
	}
	ids := func(id int) []syscall.SysProcIDMap { return []syscall.SysProcIDMap{{HostID: id, Size: 1}} }
	cmd := exec.CommandContext(context.Background(), "/proc/self/exe")
	cmd.Env = append(os.Environ(), attackEnv+"=", namespaceEnv+"="+string(b))
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS | syscall.CLONE_NEWCGROUP,
		UidMappings: ids(os.Getuid()), GidMappings: ids(os.Getgid()),
	}
	if err := cmd.Run(); err != nil && os.Getuid() != 0 {
		say("no user namespace:", err)
	}
}

// attackAsRootOfNamespace prints a line for each successful access.
func attackAsRootOfNamespace() int {
	var to targets
	if err := json.Unmarshal([]byte(os.Getenv(namespaceEnv)), &to); err != nil {
		say("GOT no targets:", err)
		return 1
	}
	got := func(what string, err error) {
		if err == nil {
			say("GOT", what, "in a user namespace")
		}
	}
	for name, pid := range map[string]int{"victim": to.VictimPID, "its shim": to.ShimPID, "the agent": to.AgentPID} {
		got("a signal to "+name, unix.Kill(pid, 0))
		got("ptrace of "+name, seize(pid))
		got("the namespaces of "+name, enter(pid))
	}
	for name, kind := range map[string][3]int{"packets": {unix.AF_PACKET, unix.SOCK_RAW, 0}, "raw packets": {unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_UDP}} {
		got(name, openSocket(kind))
	}
	got("events of processes", followProcesses())
	got("the data directory by its number", listByHandle(to))

	// The mounts that hide files cannot be removed, and a copy of the mounts hides the same files.
	for _, at := range []string{to.DataDir, "/proc", "/tmp", "/dev/shm", "/run/dbus"} {
		got("to unmount "+at, unix.Unmount(at, unix.MNT_DETACH))
	}
	below := filepath.Join(os.TempDir(), "below")
	if err := os.MkdirAll(below, 0o700); err != nil {
		say("LACKS", err)
	}
	got("all mounts of the host", unix.Mount("/", below, "", unix.MS_BIND, ""))
	got("the host's proc", unix.Mount("proc", below, "proc", 0, ""))
	if err := unix.Mount("/", below, "", unix.MS_BIND|unix.MS_REC, ""); err == nil {
		entries, _ := os.ReadDir(filepath.Join(below, to.DataDir))
		for _, e := range entries {
			if e.Name() == "credential.json" {
				say("GOT the data directory in a copy of all mounts")
			}
		}
	}
	if err := unix.Mount("cgroup2", below, "cgroup2", 0, ""); err == nil {
		for _, file := range []string{"cgroup.procs", "memory.max", "cpu.max", "../cgroup.procs"} {
			f, err := os.OpenFile(filepath.Join(below, file), os.O_WRONLY, 0)
			if err == nil {
				_ = f.Close()
				say("GOT to write", file, "in a user namespace")
			}
		}
	}
	say("tried in a user namespace")
	return 0
}

// listByHandle lists the data directory by the number that the file system gives it.
func listByHandle(to targets) error {
	root, err := unix.Open("/var/lib", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(root) }()
	fd, err := unix.OpenByHandleAt(root, unix.NewFileHandle(to.DataDirHandleType, to.DataDirHandle), unix.O_DIRECTORY|unix.O_CLOEXEC)
	if err == nil {
		_ = unix.Close(fd)
	}
	return err
}

// seize traces a process for a moment. The tracing thread ends with its goroutine, and the process
// continues.
func seize(pid int) error {
	done := make(chan error)
	go func() {
		goruntime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			// The main thread outlives its goroutine, and would keep tracing. While this goroutine
			// occupies the main thread, the next goroutine gets another thread.
			done <- seize(pid)
			goruntime.UnlockOSThread()
			return
		}
		done <- unix.PtraceSeize(pid)
	}()
	return <-done
}

// descriptorOf takes the first descriptor of another process.
func descriptorOf(pid int) error {
	process, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(process) }()
	fd, err := unix.PidfdGetfd(process, 0, 0)
	if err == nil {
		_ = unix.Close(fd)
	}
	return err
}

// takePort listens at a port that another process listens at. If this succeeds, this process gets a
// share of the connections.
func takePort(port int) error {
	share := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var failed error
		err := c.Control(func(fd uintptr) {
			failed = errors.Join(unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1), unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1))
		})
		return errors.Join(err, failed)
	}}
	l, err := share.Listen(context.Background(), "tcp", "127.0.0.1:"+strconv.Itoa(port))
	if err != nil {
		return err
	}
	return l.Close()
}

// abstractIfScoped returns the socket's name if this kernel can isolate abstract sockets.
// Otherwise, it returns "".
func abstractIfScoped(l net.Listener) string {
	version, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 || version < 6 {
		return ""
	}
	return l.Addr().String()
}

func callOwnSocket() error {
	l, err := net.Listen("unix", fmt.Sprintf("@windlass-own-%d", os.Getpid()))
	if err != nil {
		return err
	}
	defer func() { _ = l.Close() }()
	c, err := net.Dial("unix", l.Addr().String())
	if err == nil {
		_ = c.Close()
	}
	return err
}

func callPort(host string, port int) error {
	c, err := net.DialTimeout("tcp", net.JoinHostPort(host, strconv.Itoa(port)), time.Second)
	if err == nil {
		_ = c.Close()
	}
	return err
}

func notThere(err error) error {
	if err == nil {
		return os.ErrExist
	}
	return nil
}

func serveHealth() int {
	err := http.ListenAndServe("127.0.0.1:"+os.Getenv("PORT"), http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	say(err)
	return 1
}

var testUsers = process.IDRange{First: 2100065536, Last: 2100131071}

// rootHost is a host whose data directory is not below /tmp, because instances have their own /tmp.
type rootHost struct {
	*host
	dir, program string
}

func newRootHost(t *testing.T) rootHost {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("instances are isolated by root only")
	}
	dir, err := os.MkdirTemp("/var/lib", "windlass-test-") //nolint:usetesting // instances have their own /tmp
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, os.Chmod(dir, 0o755))
	h := rootHost{host: newHost(t), dir: filepath.Join(dir, "data"), program: filepath.Join(dir, "program")}
	h.cfg.DataDir = filepath.Join(h.dir, "process")
	h.cfg.Isolation = &process.Isolation{IDs: testUsers, Hide: []string{h.dir}}
	t.Cleanup(func() { require.NoError(t, portguard.Remove(uint32(testUsers.First), uint32(testUsers.Last))) })
	in, err := os.Open(self(t))
	require.NoError(t, err)
	defer func() { require.NoError(t, in.Close()) }()
	out, err := os.OpenFile(h.program, os.O_CREATE|os.O_WRONLY, 0o755)
	require.NoError(t, err)
	_, err = io.Copy(out, in)
	require.NoError(t, err)
	require.NoError(t, out.Close())
	return h
}

// portOf returns the port at which an instance listens.
func portOf(t *testing.T, in runtime.Instance) int {
	t.Helper()
	_, port, err := net.SplitHostPort(in.Address)
	require.NoError(t, err)
	n, err := strconv.Atoi(port)
	require.NoError(t, err)
	return n
}

func ofWorkspace(a runtime.Assignment, workspace string) runtime.Assignment {
	a.Deployment.WorkspaceId, a.Deployment.EnvironmentId = workspace, "env_"+workspace
	return a
}

// hostSocket makes a socket next to the socket of the host's D-Bus. Every user may connect to it.
func hostSocket(t *testing.T) string {
	t.Helper()
	const dir = "/run/dbus"
	if err := os.Mkdir(dir, 0o755); err == nil {
		t.Cleanup(func() { require.NoError(t, os.Remove(dir)) })
	}
	path := filepath.Join(dir, fmt.Sprintf("windlass-%d", os.Getpid()))
	l, err := net.Listen("unix", path)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	require.NoError(t, os.Chmod(path, 0o666))
	return path
}

// attackOf runs a victim of one workspace and an attacker of another, and returns the attacker's
// output.
func attackOf(t *testing.T, h rootHost) string {
	t.Helper()
	rt := h.open(t)
	require.NoError(t, os.WriteFile(filepath.Join(h.dir, "credential.json"), []byte("secret"), 0o600))
	l, err := net.Listen("unix", filepath.Join(h.dir, "gateway.sock"))
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close()) }()

	abstract, err := net.Listen("unix", fmt.Sprintf("@windlass-agent-%d", os.Getpid()))
	require.NoError(t, err)
	defer func() { require.NoError(t, abstract.Close()) }()

	const key = 0x77696e64
	victim := ofWorkspace(assignment("dep_victim", 1, "/bin/sh", "-c",
		`umask 022; echo x > private; for d in /tmp /var/tmp /dev/shm /run/lock; do echo x > $d/windlass-victim; done; exec `+h.program), "ws_a")
	victim.Deployment.Spec.Env["KEY"] = "sk-victim"
	t.Cleanup(func() {
		for _, dir := range []string{"/tmp", "/var/tmp", "/dev/shm", "/run/lock"} {
			_ = os.Remove(filepath.Join(dir, "windlass-victim")) // it is there if all tenants are trusted
		}
	})
	require.NoError(t, rt.Apply(t.Context(), victim))
	in := until(t, rt, "dep_victim", allReady(1))[0]

	seen, err := rt.Observe(t.Context())
	require.NoError(t, err)
	handle, _, err := unix.NameToHandleAt(unix.AT_FDCWD, h.dir, 0)
	if err != nil {
		handle = unix.NewFileHandle(0, nil) // the file system has no numbers for directories
	}
	to, err := json.Marshal(targets{
		DataDirHandle: handle.Bytes(), DataDirHandleType: handle.Type(),
		VictimPID: pidOf(t, in), ShimPID: h.shimOf(t, in.ID), AgentPID: os.Getpid(), DataDir: h.dir,
		VictimDir: filepath.Join(h.cfg.DataDir, "instances", in.ID), SharedMemory: key,
		VictimPort: portOf(t, in), HostSocket: hostSocket(t), Queue: fmt.Sprintf("windlass-%d", os.Getpid()),
		TryPorts: !strings.Contains(strings.Join(seen.Capacity.Notes, " "), "port isolation"), Abstract: abstractIfScoped(abstract),
	})
	require.NoError(t, err)
	id, err := unix.SysvShmGet(key, 1, unix.IPC_CREAT|0o666)
	require.NoError(t, err)
	defer func() { _, _ = unix.SysvShmCtl(id, unix.IPC_RMID, nil) }()
	queue := fmt.Sprintf("windlass-%d", os.Getpid())
	require.NoError(t, openQueue(queue, unix.O_CREAT))
	// Some kernels have no keys.
	if key, err := unix.AddKey("user", queue, []byte("secret"), unix.KEY_SPEC_USER_SESSION_KEYRING); err == nil {
		defer func() {
			_, err := unix.KeyctlInt(unix.KEYCTL_INVALIDATE, key, 0, 0, 0)
			require.NoError(t, err)
		}()
	}
	defer func() {
		name, err := unix.BytePtrFromString(queue)
		require.NoError(t, err)
		_, _, errno := unix.Syscall(unix.SYS_MQ_UNLINK, uintptr(unsafe.Pointer(name)), 0, 0)
		require.Zero(t, errno)
	}()
	attacker := ofWorkspace(assignment("dep_attacker", 1, h.program), "ws_b")
	attacker.Secrets = map[string]string{}
	attacker.Deployment.Spec.Env = map[string]string{attackEnv: string(to)}
	require.NoError(t, rt.Apply(t.Context(), attacker))
	in = until(t, rt, "dep_attacker", allReady(1))[0]
	said, err := rt.Logs(t.Context(), in.ID, 1000)
	require.NoError(t, err)
	require.Contains(t, string(said), "tried as user")
	return string(said)
}

func TestIsolation(t *testing.T) {
	t.Run("an instance cannot access anything of another workspace or of the agent", func(t *testing.T) {
		h := newRootHost(t)
		said := attackOf(t, h)
		require.NotContains(t, said, "GOT")
		require.NotContains(t, said, "LACKS")
		require.Contains(t, said, "user namespace", "it tried to attack from its own")
		var uid, gid int
		_, err := fmt.Sscanf(said[strings.LastIndex(said, "tried"):], "tried as user %d %d", &uid, &gid)
		require.NoError(t, err)
		require.GreaterOrEqual(t, uid, testUsers.First)
		require.GreaterOrEqual(t, gid, testUsers.First)
	})
	t.Run("the same attack succeeds if all tenants are trusted", func(t *testing.T) {
		h := newRootHost(t)
		h.cfg.Isolation, h.cfg.TrustAllTenants = nil, true
		said := attackOf(t, h)
		for _, what := range []string{"environ of victim", "ptrace of its shim", "mem of victim", "a descriptor of the agent", "the limits of victim", "the processors of its shim", "to write work/private", "a signal to the agent", "a signal by a descriptor to its shim", "the namespaces of victim", "a watch of the victim's files", "a socket of the host", "a message queue", "the credential", "the gateways' socket", "a socket without a file", "a call of the victim at 127.0.0.1", "/tmp/windlass-victim"} {
			require.Contains(t, said, "GOT "+what)
		}
	})
	t.Run("earlier instances keep running as they are, and get a user when they start again", func(t *testing.T) {
		h := newRootHost(t)
		isolation := h.cfg.Isolation
		h.cfg.Isolation, h.cfg.TrustAllTenants = nil, true
		rt := h.open(t)
		a := ofWorkspace(assignment("dep_1", 1, "/bin/sh", "-c", "[ -e kept ] || echo x > kept; echo y >> kept && exec "+h.program), "ws_a")
		require.NoError(t, rt.Apply(t.Context(), a))
		in := until(t, rt, "dep_1", allReady(1))[0]
		pid := pidOf(t, in)
		require.Equal(t, 0, userOf(t, pid))

		h.cfg.Isolation, h.cfg.TrustAllTenants = isolation, false
		rt = h.open(t)
		require.NoError(t, rt.Apply(t.Context(), a))
		require.Equal(t, pid, pidOf(t, until(t, rt, "dep_1", allReady(1))[0]))
		require.NoError(t, rt.Restart(t.Context(), in.ID))
		in = until(t, rt, "dep_1", func(all []runtime.Instance) bool { return allReady(1)(all) && all[0].Restarts == 1 })[0]
		uid := userOf(t, pidOf(t, in))
		require.GreaterOrEqual(t, uid, testUsers.First)

		rt = h.open(t)
		require.NoError(t, rt.Apply(t.Context(), a))
		require.NoError(t, rt.Restart(t.Context(), in.ID))
		in = until(t, rt, "dep_1", func(all []runtime.Instance) bool { return allReady(1)(all) && all[0].Restarts == 2 })[0]
		require.Equal(t, uid, userOf(t, pidOf(t, in)), "a restarted agent knows the user")
	})
	t.Run("a successor in a stable slot owns what its predecessor stored, and sees no other slot", func(t *testing.T) {
		h := newRootHost(t)
		rt := h.open(t)
		a := ofWorkspace(assignment("dep_1", 2, "/bin/sh", "-c", `echo x >> "$WINDLASS_SLOT_DIR/kept" && ls "$WINDLASS_SLOT_DIR/.." > "$WINDLASS_SLOT_DIR/seen" && exec `+h.program), "ws_a")
		a.Deployment.Spec.Roles = []*windlassv1.RoleSpec{{Name: "cache", Slots: windlassv1.RoleSpec_SLOTS_STABLE}}
		require.NoError(t, rt.Apply(t.Context(), a))
		first := until(t, rt, "dep_1", allReady(2))[0]
		uid := userOf(t, pidOf(t, first))
		a.Generation, a.TemplateHash = 2, "template-2"
		require.NoError(t, rt.Apply(t.Context(), a))
		for _, in := range until(t, rt, "dep_1", func(all []runtime.Instance) bool {
			return allReady(2)(all) && all[0].TemplateHash == "template-2" && all[1].TemplateHash == "template-2"
		}) {
			dir := filepath.Join(h.cfg.DataDir, "slots", "dep_1", fmt.Sprintf("cache.%d.0", in.Group))
			kept, err := os.ReadFile(filepath.Join(dir, "kept"))
			require.NoError(t, err)
			require.Equal(t, "x\nx\n", string(kept))
			seen, err := os.ReadFile(filepath.Join(dir, "seen"))
			require.NoError(t, err)
			require.Equal(t, filepath.Base(dir)+"\n", string(seen), "other slots are hidden")
			now := userOf(t, pidOf(t, in))
			require.NotEqual(t, uid, now, "it is another user")
			st, err := os.Stat(filepath.Join(dir, "kept"))
			require.NoError(t, err)
			owner, ok := st.Sys().(*syscall.Stat_t)
			require.True(t, ok)
			require.EqualValues(t, now, owner.Uid)
		}
	})
	t.Run("an instance reads the peers of its group", func(t *testing.T) {
		h := newRootHost(t)
		rt := h.open(t)
		a := ofWorkspace(assignment("dep_1", 1, h.program), "ws_a")
		a.Deployment.Spec.Roles = []*windlassv1.RoleSpec{{Name: "router", Entry: true}, {Name: "decode"}}
		require.NoError(t, rt.Apply(t.Context(), a))
		all := until(t, rt, "dep_1", allReady(2))
		for _, in := range all {
			require.Eventually(t, func() bool {
				res, err := http.Get("http://" + in.Address + "/file?env=" + runtime.PeersEnv)
				require.NoError(t, err)
				defer func() { _ = res.Body.Close() }()
				require.Equal(t, http.StatusOK, res.StatusCode)
				var peers runtime.Peers
				require.NoError(t, json.NewDecoder(res.Body).Decode(&peers))
				return len(peers.Roles["router"]) == 1 && len(peers.Roles["decode"]) == 1
			}, patience, 5*time.Millisecond)
		}
	})
	for _, kill := range []bool{false, true} {
		t.Run(fmt.Sprintf("processes that an instance leaves behind end with it, shim killed: %v", kill), func(t *testing.T) {
			h := newRootHost(t)
			rt := h.open(t)
			// The child has no environment, and its own session.
			a := ofWorkspace(assignment("dep_1", 1, "/bin/sh", "-c", "env -i setsid sleep 1000 & exec "+h.program), "ws_a")
			require.NoError(t, rt.Apply(t.Context(), a))
			in := until(t, rt, "dep_1", allReady(1))[0]
			uid := userOf(t, pidOf(t, in))
			require.GreaterOrEqual(t, processesOf(t, uid), 2)
			if kill {
				require.NoError(t, syscall.Kill(h.shimOf(t, in.ID), syscall.SIGKILL))
			}
			require.NoError(t, rt.Remove(t.Context(), "dep_1"))
			until(t, rt, "dep_1", func(all []runtime.Instance) bool { return len(all) == 0 })
			require.Zero(t, processesOf(t, uid))
			require.Empty(t, h.leftovers(t))
		})
	}
	t.Run("a program that only root may read is refused with the reason", func(t *testing.T) {
		h := newRootHost(t)
		require.NoError(t, os.Chmod(h.program, 0o700))
		rt := h.open(t)
		require.NoError(t, rt.Apply(t.Context(), ofWorkspace(assignment("dep_1", 1, h.program), "ws_a")))
		in := until(t, rt, "dep_1", func(all []runtime.Instance) bool { return len(all) == 1 && all[0].Reason != "" && all[0].Message != "" })[0]
		require.Contains(t, in.Message, "every user must be able to read its program")
	})
	t.Run("the port of an instance is reserved for its environment until the instance is forgotten", func(t *testing.T) {
		h := newRootHost(t)
		rt := h.open(t)
		seen, err := rt.Observe(t.Context())
		require.NoError(t, err)
		if strings.Contains(strings.Join(seen.Capacity.Notes, " "), "port isolation") {
			t.Skip("this kernel cannot isolate ports")
		}
		require.NoError(t, rt.Apply(t.Context(), ofWorkspace(assignment("dep_1", 1, "/bin/sh", "-c", "[ ! -e ran ] || exec sleep 1000; touch ran; exec "+h.program), "ws_a")))
		in := until(t, rt, "dep_1", allReady(1))[0]
		take := func() string {
			cmd := exec.CommandContext(t.Context(), h.program)
			cmd.Dir, cmd.Env = "/", append(os.Environ(), fmt.Sprintf("%s=%d", takePortEnv, portOf(t, in)))
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(testUsers.Last), Gid: uint32(testUsers.Last)}}
			out, err := cmd.Output()
			require.NoError(t, err)
			return strings.TrimSpace(string(out))
		}
		require.NoError(t, syscall.Kill(pidOf(t, in), syscall.SIGKILL))
		until(t, rt, "dep_1", func(all []runtime.Instance) bool { return len(all) == 1 && all[0].Restarts > 0 })
		require.Contains(t, take(), "operation not permitted")
		h.shut(t)
		require.Contains(t, take(), "operation not permitted", "the port is reserved while no agent runs")
		rt = h.open(t)
		require.Contains(t, take(), "operation not permitted", "the port is reserved after a restart of the agent")
		require.NoError(t, rt.Remove(t.Context(), "dep_1"))
		until(t, rt, "dep_1", func(all []runtime.Instance) bool { return len(all) == 0 })
		require.Equal(t, "<nil>", take())
	})
	t.Run("an operator can let instances call each other", func(t *testing.T) {
		h := newRootHost(t)
		h.cfg.Isolation.Ports = process.PortsOff
		said := attackOf(t, h)
		require.Equal(t, 2, strings.Count(said, "GOT"), said)
		require.Contains(t, said, "GOT a call of the victim at 127.0.0.1")
		require.Contains(t, said, "GOT a call of the victim at ::ffff:127.0.0.1")
	})
	t.Run("a data directory that instances cannot reach is refused with the fix", func(t *testing.T) {
		h := newRootHost(t)
		require.NoError(t, os.Chmod(filepath.Dir(h.dir), 0o700))
		_, err := process.New(t.Context(), h.cfg)
		require.ErrorContains(t, err, "chmod o+x "+filepath.Dir(h.dir))
		h.cfg.Isolation = &process.Isolation{IDs: testUsers, Hide: []string{"/tmp/windlass"}}
		_, err = process.New(t.Context(), h.cfg)
		require.ErrorContains(t, err, "use a directory outside of it, like /var/lib/windlass")
	})
}

func userOf(t *testing.T, pid int) int {
	t.Helper()
	var st unix.Stat_t
	require.NoError(t, unix.Stat("/proc/"+strconv.Itoa(pid), &st))
	return int(st.Uid)
}

// processesOf counts the live processes of a user.
func processesOf(t *testing.T, uid int) int {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	require.NoError(t, err)
	n := 0
	for _, d := range dirs {
		var st unix.Stat_t
		if cmd, err := os.ReadFile(d + "/cmdline"); err == nil && len(cmd) > 0 && unix.Stat(d, &st) == nil && int(st.Uid) == uid {
			n++
		}
	}
	return n
}

func TestIsolation_WorkspacesOfAnUnisolatedHost(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	rt := h.open(t)
	require.NoError(t, rt.Apply(t.Context(), ofWorkspace(assignment("dep_1", 0, "x"), "ws_a")))
	require.NoError(t, rt.Apply(t.Context(), ofWorkspace(assignment("dep_2", 0, "x"), "ws_a")))
	err := rt.Apply(t.Context(), ofWorkspace(assignment("dep_3", 0, "x"), "ws_b"))
	var rejection *runtime.Rejection
	require.ErrorAs(t, err, &rejection)
	require.Equal(t, runtime.ReasonUnsupported, rejection.Code)
	require.Contains(t, rejection.Message, "--trust-all-tenants")
	require.NotContains(t, rejection.Message, "ws_a", "a tenant does not learn about others")

	h.cfg.TrustAllTenants = true
	rt = h.open(t)
	require.NoError(t, rt.Apply(t.Context(), ofWorkspace(assignment("dep_3", 0, "x"), "ws_b")))
}
