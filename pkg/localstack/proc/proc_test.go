package proc_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/pkg/localstack/proc"
)

func init() { //nolint:gochecknoinits // only an init function is sure to run on the first thread
	if os.Getenv("PROC_TEST_PROGRAM") == "headless" {
		runtime.LockOSThread() // so that main runs on the process's first thread
	}
}

// TestMain turns this test binary into the programs that the tests run.
func TestMain(m *testing.M) {
	switch os.Getenv("PROC_TEST_PROGRAM") {
	case "parent":
		// This program starts a child that dies with it, prints the child's pid, and waits.
		p, err := proc.Start(proc.Spec{
			Name: "child", Path: "/bin/sleep", Args: []string{"300"},
			RecordFile: os.Args[1], DieWithParent: true,
		})
		if err != nil {
			panic(err)
		}
		_, _ = fmt.Fprintln(os.Stdout, p.PID())
		_ = p.Wait()
		os.Exit(0)
	case "headless":
		// The first thread of this program ends, and its other threads continue.
		go func() {
			_, _ = fmt.Fprintln(os.Stdout, "runs")
			select {}
		}()
		_, _, _ = syscall.Syscall(syscall.SYS_EXIT, 0, 0, 0)
	}
	os.Exit(m.Run())
}

func sh(t *testing.T, script string) proc.Spec {
	t.Helper()
	dir := t.TempDir()
	return proc.Spec{
		Name: "script", Path: "/bin/sh", Args: []string{"-c", script, dir},
		RecordFile: filepath.Join(dir, "record.json"), LogFile: filepath.Join(dir, "log"),
	}
}

func start(t *testing.T, s proc.Spec) *proc.Process {
	t.Helper()
	p, err := proc.Start(s)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Stop(context.Background(), 0)) })
	return p
}

func waitForLog(t *testing.T, s proc.Spec, text string) {
	t.Helper()
	require.Eventually(t, func() bool {
		b, _ := os.ReadFile(s.LogFile)
		return strings.Contains(string(b), text)
	}, time.Minute, 5*time.Millisecond)
}

func TestStop_SendsSIGTERMFirst(t *testing.T) {
	s := sh(t, `trap 'echo asked; exit 0' TERM; echo ready; while :; do sleep 0.01; done`)
	p := start(t, s)
	waitForLog(t, s, "ready")
	require.NoError(t, p.Stop(t.Context(), 10*time.Second))
	require.NoError(t, p.Wait())
	waitForLog(t, s, "asked")
	require.NoFileExists(t, s.RecordFile)
}

func TestStop_KillsTheGroupOfAProcessThatIgnoresSIGTERM(t *testing.T) {
	s := sh(t, `trap '' TERM; sleep 300 & echo child=$!; wait; wait`)
	p := start(t, s)
	waitForLog(t, s, "child=")
	log, err := os.ReadFile(s.LogFile)
	require.NoError(t, err)
	child, err := strconv.Atoi(strings.TrimSpace(strings.TrimPrefix(string(log), "child=")))
	require.NoError(t, err)

	require.NoError(t, p.Stop(t.Context(), 50*time.Millisecond))
	require.ErrorContains(t, p.Wait(), "signal: killed")
	require.Eventually(t, func() bool {
		_, err := proc.Birth(child)
		return err != nil
	}, time.Minute, 5*time.Millisecond)
}

func TestStray_IsStoppedByItsRecord(t *testing.T) {
	s := sh(t, "exec sleep 300")
	p := start(t, s)
	rec, ok, err := proc.Find(s.RecordFile)
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, p.PID(), rec.PID)

	pid, err := proc.StopStray(t.Context(), s.RecordFile, 10*time.Second)
	require.NoError(t, err)
	require.Equal(t, p.PID(), pid)
	<-p.Done()
	pid, err = proc.StopStray(t.Context(), s.RecordFile, 10*time.Second)
	require.NoError(t, err)
	require.Zero(t, pid, "nothing is left to stop")
}

func TestStray_IsFoundWithoutAPID(t *testing.T) {
	s := sh(t, "sleep 300; true")
	p := start(t, s)
	// A kill -9 of the parent between the fork and the second write leaves this record.
	intent, err := json.Marshal(proc.Record{Argv: append([]string{s.Path}, s.Args...)})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(s.RecordFile, intent, 0o600))

	pid, err := proc.StopStray(t.Context(), s.RecordFile, time.Second)
	require.NoError(t, err)
	require.Equal(t, p.PID(), pid)
	<-p.Done()
}

func TestStray_OtherProcessWithItsPIDIsLeftAlone(t *testing.T) {
	s := sh(t, "exec sleep 300")
	p := start(t, s)
	rec, ok, err := proc.Find(s.RecordFile)
	require.NoError(t, err)
	require.True(t, ok)
	rec.Birth = "another time"
	b, err := json.Marshal(rec)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(s.RecordFile, b, 0o600))

	pid, err := proc.StopStray(t.Context(), s.RecordFile, time.Second)
	require.NoError(t, err)
	require.Zero(t, pid)
	_, err = proc.Birth(p.PID())
	require.NoError(t, err, "still runs")
}

func TestChild_DiesWithItsKilledParent(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux has a parent-death signal")
	}
	self, err := os.Executable()
	require.NoError(t, err)
	parent := exec.CommandContext(t.Context(), self, filepath.Join(t.TempDir(), "record.json"))
	parent.Env = append(os.Environ(), "PROC_TEST_PROGRAM=parent")
	out, err := parent.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, parent.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	child, err := strconv.Atoi(strings.TrimSpace(line))
	require.NoError(t, err)
	_, err = proc.Birth(child)
	require.NoError(t, err)

	require.NoError(t, parent.Process.Signal(syscall.SIGKILL))
	_ = parent.Wait()
	require.Eventually(t, func() bool {
		_, err := proc.Birth(child)
		return err != nil
	}, time.Minute, 5*time.Millisecond)
}

func TestProcess_RunsAsLongAsItsThreads(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only on Linux, a process can be a zombie before its threads have ended")
	}
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), "PROC_TEST_PROGRAM=headless")
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	_, err = bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", cmd.Process.Pid))
		return err == nil && strings.Contains(string(stat), ") Z ")
	}, time.Minute, 5*time.Millisecond)
	birth, err := proc.Birth(cmd.Process.Pid)
	require.NoError(t, err)

	require.NoError(t, cmd.Process.Kill())
	require.True(t, proc.Ended(t.Context(), cmd.Process.Pid, birth), "a zombie whose threads have ended does not run")
	require.Error(t, cmd.Wait())
}

func TestProgram_MissingIsNamedAndLeavesNoRecord(t *testing.T) {
	s := sh(t, "")
	s.Path = "/does/not/exist"
	_, err := proc.Start(s)
	require.ErrorContains(t, err, "start script: fork/exec /does/not/exist: no such file or directory")
	require.NoFileExists(t, s.RecordFile)
}

func TestLog_LargeOneIsRenamed(t *testing.T) {
	s := sh(t, "echo new")
	require.NoError(t, os.WriteFile(s.LogFile, nil, 0o600))
	require.NoError(t, os.Truncate(s.LogFile, proc.LogLimit+1))
	p := start(t, s)
	require.NoError(t, p.Wait())
	b, err := os.ReadFile(s.LogFile)
	require.NoError(t, err)
	require.Equal(t, "new\n", string(b))
	require.FileExists(t, s.LogFile+".1")
}
