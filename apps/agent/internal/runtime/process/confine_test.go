package process

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// cgroupMount returns where the cgroup v2 hierarchy is mounted.
func cgroupMount(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("/proc/self/mounts")
	require.NoError(t, err)
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 2 && f[2] == "cgroup2" {
			return f[1]
		}
	}
	t.Skip("this host has no cgroup v2")
	return ""
}

// onOwnThread calls f on a thread that ends afterwards.
func onOwnThread(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		goruntime.LockOSThread()
		if unix.Gettid() != unix.Getpid() {
			f()
			return
		}
		// The main thread outlives its goroutine. While this goroutine occupies it, the next one gets
		// another thread.
		onOwnThread(f)
		goruntime.UnlockOSThread()
	}()
	<-done
}

func TestCoverDirectories_HidesCgroupsOfOthers(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root mounts directories")
	}
	parent := filepath.Join(cgroupMount(t), fmt.Sprintf("windlass-test-%d", os.Getpid()))
	own, other := filepath.Join(parent, "ins_own"), filepath.Join(parent, "ins_other")
	for _, dir := range []string{parent, own, other} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Skip("this process may not make cgroups: ", err)
		}
		t.Cleanup(func() { require.NoError(t, os.Remove(dir)) })
	}
	var v struct {
		names    []string
		own, err error
	}
	onOwnThread(func() {
		v.err = errors.Join(
			unix.Unshare(unix.CLONE_NEWNS),
			unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""),
			coverDirectories(&user{Hide: []string{parent}, Keep: []string{own}}),
		)
		entries, _ := os.ReadDir(parent)
		for _, e := range entries {
			v.names = append(v.names, e.Name())
		}
		_, v.own = os.ReadFile(filepath.Join(own, "cgroup.procs"))
	})
	require.NoError(t, v.err)
	require.Equal(t, []string{"ins_own"}, v.names)
	require.NoError(t, v.own)
	require.DirExists(t, other, "the host still has it")
}
