package process_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/process"
	"github.com/windlass-run/windlass/pkg/backoff"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// killAll kills every process whose working directory is below the host's directory.
func (h *host) killAll(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool {
		left := processesBelow(h.cfg.DataDir)
		for _, p := range left {
			pid, _ := strconv.Atoi(strings.Fields(p)[0])
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		return len(left) == 0
	}, time.Minute, 10*time.Millisecond)
}

const patience = 60 * time.Second

// lookable is a backoff that leaves the test enough time to observe the state before a restart.
var lookable = backoff.Policy{Min: 3 * time.Second, Max: 3 * time.Second}

func assignment(id string, replicas int32, command ...string) runtime.Assignment {
	return runtime.Assignment{
		Deployment: &agentv1.Deployment{
			Id: id, AppName: "echo", Version: 1, Replicas: replicas,
			Spec: &windlassv1.DeploymentSpec{
				Command: command, Env: map[string]string{"WINDLASS_TEST_WORKLOAD": "1"},
				HealthCheck:      &windlassv1.HealthCheck{Interval: durationpb.New(100 * time.Millisecond)},
				TerminationGrace: durationpb.New(10 * time.Second),
			},
		},
		WorkloadKey: id, Generation: 1, TemplateHash: "template-1",
	}
}

func instances(t *testing.T, rt *process.Runtime, id string) []runtime.Instance {
	t.Helper()
	o, err := rt.Observe(t.Context())
	require.NoError(t, err)
	for _, d := range o.Deployments {
		if d.DeploymentID == id {
			return d.Instances
		}
	}
	return nil
}

func until(t *testing.T, rt *process.Runtime, id string, ok func([]runtime.Instance) bool) []runtime.Instance {
	t.Helper()
	var all []runtime.Instance
	require.Eventually(t, func() bool {
		all = instances(t, rt, id)
		return ok(all)
	}, patience, 5*time.Millisecond, "%s: %+v", id, lazily{&all})
	return all
}

// lazily prints the value that all points to at the time of printing.
type lazily struct{ all *[]runtime.Instance }

func (l lazily) Format(f fmt.State, _ rune) { _, _ = fmt.Fprintf(f, "%+v", *l.all) }

func allReady(n int) func([]runtime.Instance) bool {
	return func(all []runtime.Instance) bool {
		for _, in := range all {
			if in.Status != windlassv1.InstanceStatus_INSTANCE_STATUS_READY {
				return false
			}
		}
		return len(all) == n
	}
}

func pidOf(t *testing.T, in runtime.Instance) int {
	t.Helper()
	res, err := http.Get("http://" + in.Address + "/pid")
	require.NoError(t, err)
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	pid, err := strconv.Atoi(string(b))
	require.NoError(t, err)
	return pid
}

// shimOf reads the shim's pid of an instance.
func (h *host) shimOf(t *testing.T, id string) int {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(h.cfg.DataDir, "instances", id, "facts.json"))
	require.NoError(t, err)
	var f struct {
		Shim struct {
			PID int `json:"pid"`
		} `json:"shim"`
	}
	require.NoError(t, json.Unmarshal(b, &f))
	return f.Shim.PID
}

func TestShim_KilledEndsItsInstanceWhichStartsAgain(t *testing.T) {
	t.Parallel()
	for _, away := range []bool{false, true} {
		t.Run(fmt.Sprintf("agent away %v", away), func(t *testing.T) {
			t.Parallel()
			h := newHost(t)
			h.cfg.RestartDelay = lookable
			rt := h.open(t)
			require.NoError(t, rt.Apply(t.Context(), assignment("dep_1", 1, self(t))))
			in := until(t, rt, "dep_1", allReady(1))[0]
			pid := pidOf(t, in)
			if away {
				h.shut(t)
			}
			require.NoError(t, syscall.Kill(h.shimOf(t, in.ID), syscall.SIGKILL))
			require.Eventually(t, func() bool { return !exists(pid) }, patience, time.Millisecond, "an instance ends with its shim")
			if away {
				rt = h.open(t)
			}
			until(t, rt, "dep_1", func(all []runtime.Instance) bool { return len(all) == 1 && all[0].Reason == runtime.ReasonLost })
			again := until(t, rt, "dep_1", allReady(1))[0]
			require.Equal(t, in.ID, again.ID)
			require.Equal(t, 1, again.Restarts)
		})
	}
}

func exists(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(b), ") Z ")
}

func TestInstance_LeavesNoProcessBehind(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	rt := h.open(t)
	// One child stays in the group, one has its own session, and one has also dropped its
	// environment. All three ignore SIGTERM.
	const script = `trap 'exit 0' TERM
(trap '' TERM; sleep 600) &
setsid sh -c 'trap "" TERM; sleep 601' &
setsid env -i sh -c 'trap "" TERM; sleep 602' &
wait`
	a := assignment("dep_1", 1, "/bin/sh", "-c", script)
	require.NoError(t, rt.Apply(t.Context(), a))
	require.Eventually(t, func() bool { return strings.Count(strings.Join(processesBelow(h.cfg.DataDir), "\n"), "sleep 60") >= 3 }, patience, 5*time.Millisecond)
	require.NoError(t, rt.Remove(t.Context(), "dep_1"))
	require.Eventually(t, func() bool { return instances(t, rt, "dep_1") == nil }, patience, 5*time.Millisecond)
	require.Empty(t, h.leftovers(t))
}

func TestAgent_KillsProcessesThatAKilledShimLeft(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	rt := h.open(t)
	a := assignment("dep_1", 1, "/bin/sh", "-c", `setsid sleep 603 & sleep 604 & wait`)
	require.NoError(t, rt.Apply(t.Context(), a))
	sleeping := func(n string) bool {
		return strings.Contains(strings.Join(processesBelow(h.cfg.DataDir), "\n"), "sleep "+n)
	}
	require.Eventually(t, func() bool { return sleeping("603") && sleeping("604") }, patience, 5*time.Millisecond)
	in := instances(t, rt, "dep_1")[0]
	require.NoError(t, rt.Remove(t.Context(), "dep_1"))
	_ = syscall.Kill(h.shimOf(t, in.ID), syscall.SIGKILL)
	require.Eventually(t, func() bool { return instances(t, rt, "dep_1") == nil }, patience, 5*time.Millisecond)
	require.Empty(t, h.leftovers(t))
}

func TestAgent_SecondOnADataDirectoryIsRefused(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.open(t)
	cfg := h.cfg
	cfg.LockPatience = 50 * time.Millisecond
	_, err := process.New(t.Context(), cfg)
	require.ErrorContains(t, err, "in use by another agent (pid "+strconv.Itoa(os.Getpid()))
	h.shut(t)
	rt, err := process.New(t.Context(), cfg)
	require.NoError(t, err)
	require.NoError(t, rt.Close())
}

func TestStopOnExit_StopsAllInstancesAndRestartsThem(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.cfg.StopInstancesOnExit = true
	rt := h.open(t)
	require.NoError(t, rt.Apply(t.Context(), assignment("dep_1", 2, self(t))))
	before := until(t, rt, "dep_1", allReady(2))
	h.shut(t)
	require.Empty(t, processesBelow(h.cfg.DataDir))
	rt = h.open(t)
	after := until(t, rt, "dep_1", allReady(2))
	require.Equal(t, before[0].ID, after[0].ID)
	require.Equal(t, before[1].ID, after[1].ID)
}

func TestReboot_StartsEverythingAgain(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	rt := h.open(t)
	require.NoError(t, rt.Apply(t.Context(), assignment("dep_1", 1, self(t))))
	in := until(t, rt, "dep_1", allReady(1))[0]
	h.shut(t)
	// After a reboot, there are no processes, and the facts are from another boot. Their pids may
	// belong to other processes now, such as this one.
	h.killAll(t)
	path := filepath.Join(h.cfg.DataDir, "instances", in.ID, "facts.json")
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	var f map[string]any
	require.NoError(t, json.Unmarshal(b, &f))
	f["boot"] = "another"
	delete(f, "exit")
	f["shim"].(map[string]any)["pid"] = os.Getpid()
	f["child"].(map[string]any)["pid"] = os.Getpid()
	b, err = json.Marshal(f)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, b, 0o600))

	rt = h.open(t)
	again := until(t, rt, "dep_1", func(all []runtime.Instance) bool { return allReady(1)(all) && all[0].StartedAt.After(in.StartedAt) })[0]
	require.Equal(t, in.ID, again.ID)
	require.False(t, again.Doomed)
}

func TestAssignment_LostStopsNothing(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	rt := h.open(t)
	require.NoError(t, rt.Apply(t.Context(), assignment("dep_1", 1, self(t))))
	require.NoError(t, rt.Apply(t.Context(), assignment("dep_2", 1, self(t))))
	one, two := until(t, rt, "dep_1", allReady(1)), until(t, rt, "dep_2", allReady(1))
	h.shut(t)
	require.NoError(t, os.Remove(filepath.Join(h.cfg.DataDir, "deployments", "dep_1.json")))
	require.NoError(t, os.WriteFile(filepath.Join(h.cfg.DataDir, "deployments", "dep_2.json"), []byte("{torn"), 0o600))
	rt = h.open(t)
	// When this assignment has had its effect, the lost assignments could have had an effect, too.
	require.NoError(t, rt.Apply(t.Context(), assignment("dep_3", 1, self(t))))
	until(t, rt, "dep_3", allReady(1))
	require.Equal(t, one, until(t, rt, "dep_1", allReady(1)))
	require.NoError(t, rt.Apply(t.Context(), assignment("dep_1", 2, self(t))))
	require.Contains(t, until(t, rt, "dep_1", allReady(2)), one[0])
	require.Equal(t, two, until(t, rt, "dep_2", allReady(1)))
	require.NoError(t, rt.Remove(t.Context(), "dep_2"))
	require.Eventually(t, func() bool { return instances(t, rt, "dep_2") == nil }, patience, 5*time.Millisecond)
}

// agentMain runs an agent in a process that the test kills. It applies the assignments in the file
// next to its data directory. Each line has an id and a number of replicas.
func agentMain(dir string) int {
	rt, err := process.New(context.Background(), config(dir, os.Stderr))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	go func() {
		self, _ := os.Executable()
		for generation := int64(1); ; generation++ {
			b, _ := os.ReadFile(dir + ".wanted")
			want := map[string]bool{}
			for line := range strings.Lines(string(b)) {
				var id string
				var n int32
				if _, err := fmt.Sscanf(line, "%s %d", &id, &n); err != nil {
					continue
				}
				want[id] = true
				if err := rt.Apply(context.Background(), assignment(id, n, self)); err != nil {
					fmt.Fprintln(os.Stderr, err)
				}
			}
			o, _ := rt.Observe(context.Background())
			for _, d := range o.Deployments {
				if !want[d.DeploymentID] {
					_ = rt.Remove(context.Background(), d.DeploymentID)
				}
			}
			time.Sleep(5 * time.Millisecond)
		}
	}()
	if err := rt.Run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	return 1
}

func TestCrash_AgentKilledAnywhereLosesNothing(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	want := func(lines ...string) {
		tmp := h.cfg.DataDir + ".tmp"
		require.NoError(t, os.WriteFile(tmp, []byte(strings.Join(lines, "\n")+"\n"), 0o600))
		require.NoError(t, os.Rename(tmp, h.cfg.DataDir+".wanted"))
	}
	rt := h.open(t)
	require.NoError(t, rt.Apply(t.Context(), assignment("dep_steady", 2, self(t))))
	steady := until(t, rt, "dep_steady", allReady(2))
	pids := []int{pidOf(t, steady[0]), pidOf(t, steady[1])}
	h.shut(t)

	seed := uint64(time.Now().UnixNano())
	t.Log("seed", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	for round := range 25 {
		lines := []string{"dep_steady 2"}
		for i := range 3 {
			if n := rnd.IntN(4); n > 0 {
				lines = append(lines, fmt.Sprintf("dep_%d %d", i, n-1))
			}
		}
		want(lines...)
		cmd := exec.Command(self(t))
		cmd.Env = append(os.Environ(), agentEnv+"="+h.cfg.DataDir)
		cmd.Stderr = t.Output()
		require.NoError(t, cmd.Start())
		time.Sleep(time.Duration(rnd.IntN(300)) * time.Millisecond)
		require.NoError(t, cmd.Process.Kill())
		_ = cmd.Wait()
		seen := map[string]bool{}
		for id, n := range h.children() {
			require.LessOrEqual(t, n, 1, "round %d: %s runs %d times", round, id, n)
			seen[id] = true
		}
		for _, in := range steady {
			require.True(t, seen[in.ID], "round %d: a steady instance ended", round)
		}
	}

	rt = h.open(t)
	require.NoError(t, rt.Apply(t.Context(), assignment("dep_steady", 2, self(t))))
	for i := range 3 {
		require.NoError(t, rt.Apply(t.Context(), assignment(fmt.Sprintf("dep_%d", i), 2, self(t))))
	}
	for i := range 3 {
		until(t, rt, fmt.Sprintf("dep_%d", i), allReady(2))
	}
	after := until(t, rt, "dep_steady", allReady(2))
	require.Equal(t, steady, after)
	now := []int{pidOf(t, after[0]), pidOf(t, after[1])}
	require.Equal(t, pids, now)
	require.Len(t, h.children(), 8, "every process that runs is known to the agent")
	for _, id := range []string{"dep_steady", "dep_0", "dep_1", "dep_2"} {
		require.NoError(t, rt.Remove(t.Context(), id))
	}
	require.Eventually(t, func() bool {
		o, err := rt.Observe(t.Context())
		return err == nil && len(o.Deployments) == 0
	}, patience, 5*time.Millisecond)
	require.Empty(t, h.leftovers(t))
}

// children counts the workload processes of this host by instance id.
func (h *host) children() map[string]int {
	n := map[string]int{}
	for _, p := range processesBelow(h.cfg.DataDir) {
		b, err := os.ReadFile("/proc/" + strings.Fields(p)[0] + "/environ")
		if err != nil {
			continue
		}
		for kv := range strings.SplitSeq(string(b), "\x00") {
			if id, ok := strings.CutPrefix(kv, "WINDLASS_INSTANCE_ID="); ok {
				n[id]++
			}
		}
	}
	return n
}
