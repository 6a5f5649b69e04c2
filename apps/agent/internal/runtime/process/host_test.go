package process

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/redact"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func testLedger(cfg Config) *ledger {
	cfg.Random = func() float64 { return 0.5 }
	l := newLedger(cfg)
	l.listen = func(int) error { return nil }
	l.owner = func(int) string { return "" }
	return l
}

var sized = []GPU{
	{ID: "0", Product: "A", MemoryMiB: 40960}, {ID: "1", Product: "A", MemoryMiB: 81920}, {ID: "2", Product: "A"}, {ID: "3", Product: "B", MemoryMiB: 81920},
}

func TestGPU_TooSmallOrUnknownIsNotGiven(t *testing.T) {
	l := testLedger(Config{GPUs: sized, Pool: "mixed"})
	a := &record{ID: "a"}
	large := need{gpus: needGPUs{count: 1, product: "A", memoryMiB: 80000}}
	require.Nil(t, l.claimResources(a, large, false, t0))
	require.Equal(t, []string{"1"}, a.GPUs)
	require.Equal(t, "needs 1 of A with 80000 MiB or more each, 0 of 1 free", l.claimResources(&record{ID: "b"}, large, false, t0).Message)
	want := []*agentv1.GpuPool{
		{Product: "A", Pool: "mixed", Allocatable: 1, Free: 1, LargestFree: 1, Hosts: 1, MemoryMib: 40960},
		{Product: "A", Pool: "mixed", Allocatable: 1, Requested: 1, Hosts: 1, MemoryMib: 81920},
		{Product: "A", Pool: "mixed", Allocatable: 1, Free: 1, LargestFree: 1, Hosts: 1},
		{Product: "B", Pool: "mixed", Allocatable: 1, Free: 1, LargestFree: 1, Hosts: 1, MemoryMib: 81920},
	}
	for i, p := range l.gpuPools() {
		require.True(t, proto.Equal(want[i], p), "%v", p)
	}
}

func TestGPU_RefusalSaysWhatTheHostHas(t *testing.T) {
	for _, c := range []struct {
		pool, code, says string
		gpu              *windlassv1.Gpu
	}{
		{gpu: &windlassv1.Gpu{Count: 1, Product: "A", MinMemoryMib: 80000}},
		{pool: "h100", gpu: &windlassv1.Gpu{Count: 1, Pool: "h100"}},
		{pool: "h100", gpu: &windlassv1.Gpu{Count: 1}},
		{pool: "h100", gpu: &windlassv1.Gpu{Count: 1, Pool: "a10"}, code: runtime.ReasonUnknownPool, says: `asks for pool "a10", this host is in pool "h100"`},
		{gpu: &windlassv1.Gpu{Count: 1, Pool: "a10"}, code: runtime.ReasonUnknownPool, says: `asks for pool "a10", this host is in no pool: its operator can set one with --pool`},
		{
			gpu: &windlassv1.Gpu{Count: 2, Product: "A", MinMemoryMib: 80000}, code: runtime.ReasonUnschedulable,
			says: "needs 2 of A with 80000 MiB or more each, this host has 1 (it has [B]; others have 40960 MiB; the memory of 1 is unknown",
		},
		{gpu: &windlassv1.Gpu{Count: 1, ResourceName: "nvidia.com/gpu"}},
		{
			gpu: &windlassv1.Gpu{Count: 1, ResourceName: "amd.com/gpu"}, code: runtime.ReasonUnsupported,
			says: `resources.gpu.resourceName: "amd.com/gpu" is a resource name of Kubernetes`,
		},
		{gpu: &windlassv1.Gpu{Count: 5}, code: runtime.ReasonUnschedulable, says: "needs 5 of any GPU, this host has 4"},
	} {
		r := &Runtime{cfg: Config{GPUs: sized, Pool: c.pool, MaxInstances: 1}}
		rej := r.refuseAssignment(runtime.Assignment{Deployment: &agentv1.Deployment{Id: "dep_1", Replicas: 1, Spec: &windlassv1.DeploymentSpec{
			Command: []string{"x"}, Resources: &windlassv1.Resources{Gpu: c.gpu},
		}}})
		if c.code == "" {
			require.Nil(t, rej, "%v", c.gpu)
			continue
		}
		require.NotNil(t, rej, "%v", c.gpu)
		require.Equal(t, c.code, rej.Code)
		require.Contains(t, rej.Message, c.says)
		require.False(t, rej.Retryable)
	}
}

func TestDrain_LastsNoLongerIfTheClockIsSet(t *testing.T) {
	o := order{At: t0, Drain: 10 * time.Second}
	require.Equal(t, t0.Add(40*time.Second), o.deadlineOf(30*time.Second), "grace begins after the drain")
	for after, left := range map[time.Duration]time.Duration{
		0: 10 * time.Second, 4 * time.Second: 6 * time.Second, time.Minute: 0, -time.Hour: 10 * time.Second,
	} {
		require.Equal(t, left, o.drainLeft(t0.Add(after)), after)
	}
}

var someGPUs = []GPU{{ID: "0", Product: "A"}, {ID: "1", Product: "B"}, {ID: "2", Product: "A"}}

func TestGPU_HasOneOwnerWhichKeepsIt(t *testing.T) {
	l := testLedger(Config{GPUs: someGPUs})
	a, b := &record{ID: "a"}, &record{ID: "b"}
	require.Nil(t, l.claimResources(a, need{gpus: needGPUs{count: 1, product: "A"}}, false, t0))
	require.Nil(t, l.claimResources(b, need{gpus: needGPUs{count: 1}}, false, t0))
	require.Equal(t, []string{"0"}, a.GPUs)
	require.Equal(t, []string{"1"}, b.GPUs)
	require.Nil(t, l.claimResources(a, need{gpus: needGPUs{count: 1, product: "A"}}, false, t0))
	require.Equal(t, []string{"0"}, a.GPUs, "a second claim returns the same GPU")

	missing := l.claimResources(&record{ID: "c"}, need{gpus: needGPUs{count: 2, product: "A"}}, false, t0)
	require.Equal(t, runtime.ReasonUnschedulable, missing.Reason)
	require.Equal(t, "needs 2 of A, 1 of 2 free", missing.Message)
	require.Equal(t, []int32{1, 0}, []int32{l.gpuPools()[0].LargestFree, l.gpuPools()[1].LargestFree})

	again := testLedger(Config{GPUs: someGPUs})
	again.restoreClaim(*a)
	again.restoreClaim(*b)
	require.Equal(t, l.gpuPools(), again.gpuPools(), "GPUs that the previous agent assigned are not free")
	l.release("a")
	require.Nil(t, l.claimResources(&record{ID: "c"}, need{gpus: needGPUs{count: 2, product: "A"}}, false, t0))
}

func TestMemory_IsRefusedOnlyIfConfigured(t *testing.T) {
	over := need{memoryMiB: 600}
	l := testLedger(Config{MemoryMiB: 1000})
	require.Nil(t, l.claimResources(&record{ID: "a"}, over, false, t0))
	require.Nil(t, l.claimResources(&record{ID: "b"}, over, false, t0))
	l = testLedger(Config{MemoryMiB: 1000, RefuseMemoryOvercommit: true})
	a := &record{ID: "a"}
	require.Nil(t, l.claimResources(a, over, false, t0))
	require.Nil(t, l.claimResources(a, over, false, t0), "the instance's own memory does not count against it")
	require.Equal(t, "needs 600 MiB of memory, 400 of 1000 MiB free", l.claimResources(&record{ID: "b"}, over, false, t0).Message)
}

func TestPort_IsKeptAndReplacedWhenTaken(t *testing.T) {
	l := testLedger(Config{Ports: PortRange{Min: 100, Max: 102}})
	two := need{ports: []needPort{{name: "http"}, {name: "metrics"}}}
	a := &record{ID: "a"}
	require.Nil(t, l.claimResources(a, two, false, t0))
	require.Len(t, a.Ports, 2)
	require.NotEqual(t, a.Ports[0].Port, a.Ports[1].Port)
	before := a.Ports
	require.Nil(t, l.claimResources(a, two, false, t0))
	require.Equal(t, before, a.Ports)

	l.listen = func(p int) error {
		if p == before[0].Port {
			return os.ErrExist
		}
		return nil
	}
	require.Nil(t, l.claimResources(a, two, false, t0))
	require.NotEqual(t, before[0].Port, a.Ports[0].Port, "another process has taken the port")
	require.Equal(t, before[1].Port, a.Ports[1].Port)

	none := l.claimResources(&record{ID: "b"}, two, false, t0)
	require.Equal(t, runtime.ReasonUnschedulable, none.Reason)
	require.Equal(t, "no free port in 100-102", none.Message)
	l.release("a")
	require.Equal(t, runtime.ReasonUnschedulable, l.claimResources(&record{ID: "b"}, need{ports: append(two.ports, needPort{name: "third"})}, false, t0).Reason)
	require.Nil(t, l.claimResources(&record{ID: "b"}, two, false, t0))
}

func TestStart_KeepsItsPortsWhileItHasNoUser(t *testing.T) {
	ids := IDRange{First: 5000, Last: 6023}
	rt := &Runtime{
		ledger: testLedger(Config{Ports: PortRange{Min: 100, Max: 110}, GPUs: someGPUs}),
		users: &users{
			ids: ids, state: userState{Next: ids.First, Groups: map[string]int{}}, next: ids.First, uses: map[int]string{},
			busy: func(IDRange) (map[int]bool, error) { return nil, os.ErrPermission },
		},
	}
	// Each allocation would start at another port.
	first := 0.0
	rt.ledger.random = func() float64 { first += 0.1; return first }
	w := newWorkload(rt, "dep_1")
	in := &instance{rec: record{ID: "ins_1", Role: runtime.DefaultRole}}
	d := &deployment{spec: &agentv1.Deployment{Id: "dep_1", Spec: &windlassv1.DeploymentSpec{
		Resources: &windlassv1.Resources{MemoryMib: 64, Gpu: &windlassv1.Gpu{Count: 1}},
	}}}
	var ports []port
	for range 5 {
		w.start(t.Context(), in, d, t0)
		require.NotNil(t, in.blocked)
		require.Zero(t, in.rec.Attempt)
		require.Len(t, in.rec.Ports, 1)
		if ports == nil {
			ports = in.rec.Ports
		}
		require.Equal(t, ports, in.rec.Ports)
		require.Len(t, rt.ledger.portOf, 1)
		require.Len(t, in.rec.GPUs, 1)
		require.Equal(t, 64, in.rec.MemoryMiB)
	}
}

func TestPort_FixedBelongsToOneInstance(t *testing.T) {
	l := testLedger(Config{})
	fixed := need{ports: []needPort{{name: "http", port: 8080}}}
	require.Nil(t, l.claimResources(&record{ID: "a"}, fixed, false, t0))
	b := l.claimResources(&record{ID: "b"}, fixed, false, t0)
	require.Equal(t, runtime.ReasonPortInUse, b.Reason)
	require.Contains(t, b.Message, "port 8080 is taken by instance a of this host")
}

func TestPort_ErrorNamesTheListeningProcess(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = ln.Close() }()
	p := ln.Addr().(*net.TCPAddr).Port
	l := newLedger(Config{})
	b := l.claimResources(&record{ID: "a"}, need{ports: []needPort{{name: "http", port: p}}}, false, t0)
	require.Equal(t, runtime.ReasonPortInUse, b.Reason)
	require.Contains(t, b.Message, "is in use by pid "+strconv.Itoa(os.Getpid())+" (")
}

func TestArguments_VariablesAreReplaced(t *testing.T) {
	env := map[string]string{"PORT": "8080", "A": "$(PORT)"}
	for in, want := range map[string]string{
		"--port=$(PORT)":    "--port=8080",
		"$(PORT)$(PORT)":    "80808080",
		"$$(PORT)":          "$(PORT)",
		"$$$(PORT)":         "$$(PORT)",
		"$(NOPE)":           "$(NOPE)",
		"$(A)":              "$(PORT)",
		"$(PORT":            "$(PORT",
		"$PORT ${PORT} $()": "$PORT ${PORT} $()",
	} {
		require.Equal(t, want, expandVariables(in, env), in)
	}
}

func TestInstance_InheritsNothingOfTheAgent(t *testing.T) {
	host := map[string]string{"PATH": "/bin", "AGENT_TOKEN": "x", "TZ": "UTC"}
	env := environmentFor(&agentv1.Deployment{Id: "dep_1", Replicas: 2, Spec: &windlassv1.DeploymentSpec{
		Env: map[string]string{"A": "spec", "B": "spec", "KEY": "spec", "PORT": "1", "WINDLASS_ROLE": "mine", "LANG": "de_DE"},
	}}, runtime.Role{Env: map[string]string{"B": "role", "KEY": "role"}}, &record{ID: "ins_1", Role: "main", Ports: []port{{Name: "http", Port: 80}}}, "eu", map[string]string{"KEY": "secret"}, func(k string) string { return host[k] })
	require.NotContains(t, env, "AGENT_TOKEN")
	for k, v := range map[string]string{
		"PATH": "/bin", "TZ": "UTC", "HOME": "/", "LANG": "de_DE", "A": "spec", "B": "role", "KEY": "secret",
		"PORT": "80", "WINDLASS_ROLE": "main", "WINDLASS_REGION": "eu",
		"CUDA_VISIBLE_DEVICES": "", "NVIDIA_VISIBLE_DEVICES": "void",
	} {
		got, ok := env[k]
		require.True(t, ok, k)
		require.Equal(t, v, got, k)
	}
}

func TestProgram_IsFoundAsAShellFindsIt(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "run"), nil, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "data"), nil, 0o600))
	for _, c := range []struct{ file, path, want, err string }{
		{file: "run", path: "/nowhere:" + dir, want: dir + "/run"},
		{file: "./run", want: dir + "/run"},
		{file: dir + "/run", want: dir + "/run"},
		{file: "run", path: "/nowhere", err: "no such program in PATH (/nowhere)"},
		{file: "data", path: dir, err: "no such program in PATH"},
		{file: "./data", err: dir + "/data: it is not executable"},
		{file: dir, err: "it is a directory"},
		{file: "./none", err: dir + "/none: no such file"},
		{file: "./run/none", err: "no such file"},
	} {
		got, err := lookPath(c.file, c.path, dir)
		if c.err != "" {
			require.ErrorContains(t, err, c.err, c.file)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, c.want, got)
	}
}

func TestOutput_KeepsItsEndWithinItsLimit(t *testing.T) {
	dir := t.TempDir()
	o, err := openOutput(dir, 4096)
	require.NoError(t, err)
	for i := range 1000 {
		_, err := o.Write([]byte("line " + strconv.Itoa(i) + "\n"))
		require.NoError(t, err)
	}
	_, _ = o.Write([]byte("key is hunter2\x1b\nno newline"))
	require.Equal(t, []string{"line 997", "line 998", "line 999", "key is *** ", "no newline"}, o.newestLines(redact.New("hunter2")))
	o.close()
	total := int64(0)
	for _, f := range []string{outputFile, outputFile + ".1"} {
		st, err := os.Stat(filepath.Join(dir, f))
		require.NoError(t, err)
		total += st.Size()
	}
	require.LessOrEqual(t, total, int64(4096+100))
	b, err := readOutput(dir, 3)
	require.NoError(t, err)
	require.Equal(t, "line 999\nkey is hunter2\x1b\nno newline", string(b))
	b, err = readOutput(dir, 150)
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(string(b), "line 852\n"), "both files are one: %.20s", b)

	o, err = openOutput(dir, 4096)
	require.NoError(t, err)
	require.Empty(t, o.newestLines(nil), "the next attempt has only its own last output")
	o.close()
}

func TestLastLines(t *testing.T) {
	for _, c := range []struct {
		in    string
		n     int
		limit int
		want  string
	}{
		{"a\nb\nc\n", 2, 100, "b\nc\n"},
		{"a\nb\nc", 1, 100, "c"},
		{"a\nb\n", 9, 100, "a\nb\n"},
		{"", 3, 100, ""},
		{"\n\n", 1, 100, "\n"},
		{"aaaa\nbb\n", 5, 5, "bb\n"},
		{"a\n", 0, 100, ""},
	} {
		require.Equal(t, c.want, string(lastLines([]byte(c.in), c.n, c.limit)), "%q", c)
	}
}

func TestStat_IsParsedWithStrangeNames(t *testing.T) {
	st, err := parseStat([]byte("12 (a) S (b)) Z 7 12 9 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 1 0 987654 0 0"))
	require.NoError(t, err)
	require.Equal(t, stat{state: 'Z', ppid: 7, session: 9, threads: 1, start: 987654}, st)
	require.True(t, st.hasEnded())
	st, err = parseStat([]byte("12 (a) Z 7 12 9 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 2 0 987654 0 0"))
	require.NoError(t, err)
	require.False(t, st.hasEnded(), "the remaining thread still holds the port and the memory")
	st, err = parseStat([]byte("12 (a) S 1 12 9 0 -1 4194304 100 0 0 0 150 50 20 10 20 0 4 0 1234 5000000 300 18446744073709551615 1 1"))
	require.NoError(t, err)
	require.Equal(t, 2300*time.Millisecond, st.cpu, "includes the CPU time of ended children")
	require.EqualValues(t, 300, st.pages)
	for _, broken := range []string{"", "12 (a", "12 (a) S 1", "12 (a) S 1 2 3 0 -1 0 0 0 0 0 a b c d 0 0 1 0 0 0 0"} {
		_, err = parseStat([]byte(broken))
		require.Error(t, err, broken)
	}
}

func TestGPU_OutputOfNvidiaSMIIsRead(t *testing.T) {
	require.Equal(t, []GPU{
		{ID: "GPU-8f1c", Product: "NVIDIA-H100-80GB-HBM3", MemoryMiB: 81559},
		{ID: "GPU-77aa", Product: "NVIDIA-A10", MemoryMiB: 23028},
	}, parseNvidiaSMI("GPU-8f1c, NVIDIA H100 80GB HBM3, 81559\nGPU-77aa, NVIDIA A10, 23028\nNo devices were found\n"))
	g, ok := parseNvidiaInformation("Model: \t\t NVIDIA A10G\nIRQ:   \t\t 0\nGPU UUID: \t GPU-1234-56\n")
	require.True(t, ok)
	require.Equal(t, GPU{ID: "GPU-1234-56", Product: "NVIDIA-A10G"}, g)
	_, ok = parseNvidiaInformation("Model: x\nGPU UUID: GPU-????????\n")
	require.False(t, ok)
}

// A directory stands in for the kernel's cgroups. The test checks what the runtime writes, and not
// what the kernel does with it.
func TestCgroupLimits(t *testing.T) {
	dir := t.TempDir()
	_, err := openCgroups(dir)
	require.ErrorContains(t, err, "no cgroup v2")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "cgroup.controllers"), []byte("cpuset cpu io\n"), 0o600))
	_, err = openCgroups(dir)
	require.ErrorContains(t, err, "controller memory is not delegated")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "cgroup.controllers"), []byte("cpu memory\n"), 0o600))
	c, err := openCgroups(dir)
	require.NoError(t, err)
	cg, err := c.create("ins_1", 1500, 512)
	require.NoError(t, err)
	for file, want := range map[string]string{"cpu.max": "150000 100000", "memory.max": "536870912"} {
		b, err := os.ReadFile(filepath.Join(cg, file))
		require.NoError(t, err)
		require.Equal(t, want, string(b))
	}
	require.False(t, oomKilled(cg))
	require.NoError(t, os.WriteFile(filepath.Join(cg, "memory.events"), []byte("low 0\noom 1\noom_kill 0\n"), 0o600))
	require.False(t, oomKilled(cg))
	require.NoError(t, os.WriteFile(filepath.Join(cg, "memory.events"), []byte("oom 1\noom_kill 2\n"), 0o600))
	require.True(t, oomKilled(cg))
}

func TestHealthCheckDefaults(t *testing.T) {
	require.Equal(t, health{
		Path: "/health", Method: "GET", Interval: 10 * time.Second, Timeout: 5 * time.Second,
		Unhealthy: 3, Healthy: 2, Budget: 30 * time.Minute,
	}, healthOf(nil))
}

func TestRefusals(t *testing.T) {
	r := &Runtime{cfg: Config{CPUMillicores: 4000, MemoryMiB: 1024, GPUs: someGPUs, MaxInstances: 10}}
	good := func() *agentv1.Deployment {
		return &agentv1.Deployment{Id: "dep_1", Replicas: 1, Spec: &windlassv1.DeploymentSpec{Command: []string{"x"}, Resources: &windlassv1.Resources{}}}
	}
	require.Nil(t, r.refuseAssignment(runtime.Assignment{Deployment: good()}))
	for _, c := range []struct {
		name   string
		change func(*agentv1.Deployment)
		code   string
		says   string
	}{
		{"an id that is a path", func(d *agentv1.Deployment) { d.Id = "../x" }, runtime.ReasonInvalidSpec, "id"},
		{"no spec", func(d *agentv1.Deployment) { d.Spec = nil }, runtime.ReasonInvalidSpec, "spec"},
		{"negative replicas", func(d *agentv1.Deployment) { d.Replicas = -1 }, runtime.ReasonInvalidSpec, "replicas"},
		{"too many replicas", func(d *agentv1.Deployment) { d.Replicas = 11 }, runtime.ReasonUnschedulable, "11 instances"},
		{"image without a command", func(d *agentv1.Deployment) { d.Spec.Command, d.Spec.Image = nil, "x" }, runtime.ReasonUnsupported, "set command"},
		{"neither image nor command", func(d *agentv1.Deployment) { d.Spec.Command = nil }, runtime.ReasonInvalidSpec, "set command"},
		{"cpu", func(d *agentv1.Deployment) { d.Spec.Resources.CpuMillicores = 4001 }, runtime.ReasonUnschedulable, "resources.cpuMillicores: needs 4001, this host has 4000"},
		{"memory", func(d *agentv1.Deployment) { d.Spec.Resources.MemoryMib = 1025 }, runtime.ReasonUnschedulable, "resources.memoryMib: needs 1025 MiB, this host has 1024"},
		{"memory of a role", func(d *agentv1.Deployment) {
			d.Spec.Roles = []*windlassv1.RoleSpec{{Name: "prefill"}, {Name: "decode", Resources: &windlassv1.Resources{MemoryMib: 1025}}}
		}, runtime.ReasonUnschedulable, "roles[1].resources.memoryMib: needs 1025 MiB, this host has 1024"},
		{"gpus of a role", func(d *agentv1.Deployment) {
			d.Spec.Roles = []*windlassv1.RoleSpec{{Name: "main", Resources: &windlassv1.Resources{Gpu: &windlassv1.Gpu{Count: 3, Product: "A"}}}}
		}, runtime.ReasonUnschedulable, "roles[0].resources.gpu: needs 3 of A, this host has 2"},
		{"gpus", func(d *agentv1.Deployment) { d.Spec.Resources.Gpu = &windlassv1.Gpu{Count: 3, Product: "A"} }, runtime.ReasonUnschedulable, "needs 3 of A, this host has 2 (it has [B])"},
		{"port twice", func(d *agentv1.Deployment) { d.Spec.Ports = []*windlassv1.Port{{Name: "a"}, {Name: "a"}} }, runtime.ReasonInvalidSpec, "ports[1].name"},
		{"number twice", func(d *agentv1.Deployment) {
			d.Spec.Ports = []*windlassv1.Port{{Name: "a", Port: 1}, {Name: "b", Port: 1}}
		}, runtime.ReasonInvalidSpec, "ports[1].port"},
		{"health port", func(d *agentv1.Deployment) { d.Spec.HealthCheck = &windlassv1.HealthCheck{Port: "x"} }, runtime.ReasonInvalidSpec, `no port is named "x"`},
		{"an invalid code", func(d *agentv1.Deployment) {
			d.Spec.HealthCheck = &windlassv1.HealthCheck{ExpectedCodes: []string{"2xx"}}
		}, runtime.ReasonInvalidSpec, `healthCheck.expectedCodes: "2xx"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := good()
			c.change(d)
			rej := r.refuseAssignment(runtime.Assignment{Deployment: d})
			require.NotNil(t, rej)
			require.Equal(t, c.code, rej.Code)
			require.Contains(t, rej.Message, c.says)
			require.False(t, rej.Retryable)
		})
	}
}

func TestImageCommands(t *testing.T) {
	table, err := ParseImageCommands([]string{"vllm/vllm-openai=vllm serve", "registry.test:5000/x=/opt/x --flag=1"})
	require.NoError(t, err)
	r := &Runtime{cfg: Config{CPUMillicores: 4000, MemoryMiB: 1024, MaxInstances: 10, ImageCommands: table}}
	for _, c := range []struct {
		name, image string
		command     []string
		want        []string
	}{
		{"an image by its tag", "vllm/vllm-openai:v0.20.0", nil, []string{"vllm", "serve"}},
		{"an image by its digest", "vllm/vllm-openai@sha256:beef", nil, []string{"vllm", "serve"}},
		{"an image by both", "vllm/vllm-openai:v1@sha256:beef", nil, []string{"vllm", "serve"}},
		{"an image from a registry with a port", "registry.test:5000/x", nil, []string{"/opt/x", "--flag=1"}},
		{"the app's command wins", "vllm/vllm-openai:v1", []string{"x"}, []string{"x"}},
		{"an image of the same name from another registry", "ghcr.io/vllm/vllm-openai:v1", nil, nil},
		{"an image without a command on this host", "y:v1", nil, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := &agentv1.Deployment{Id: "dep_1", Replicas: 1, Spec: &windlassv1.DeploymentSpec{Image: c.image, Command: c.command, Resources: &windlassv1.Resources{}}}
			require.Equal(t, c.want, r.commandOf(runtime.Roles(d.GetSpec())[0]))
			rej := r.refuseAssignment(runtime.Assignment{Deployment: d})
			if c.want == nil {
				require.Equal(t, runtime.ReasonUnsupported, rej.Code)
				require.Contains(t, rej.Message, "--image-command")
			} else {
				require.Nil(t, rej)
				d.Spec.Args = []string{"m"}
				require.Equal(t, append(c.want, "m"), r.launchOf(record{ID: "ins_1"}, runtime.Roles(d.GetSpec())[0], &deployment{spec: d}).Argv)
			}
		})
	}
	for _, text := range []string{"", "x", "x=", "=y", "x:v1=y", "x@sha256:beef=y", "a b=y"} {
		_, err := ParseImageCommands([]string{text})
		require.ErrorContains(t, err, "IMAGE=COMMAND", text)
	}
	_, err = ParseImageCommands([]string{"x=y", "x=z"})
	require.ErrorContains(t, err, "given twice")
}

func TestAttempt_InDoubtEndsBeforeTheNext(t *testing.T) {
	const boot = "this"
	dir := t.TempDir()
	// No shim ever ran this attempt.
	f, err := settleAttempt(t.Context(), dir, "ins_1", 3, boot, exit{Kind: exitNeverRan}, nil)
	require.NoError(t, err)
	require.Equal(t, exitNeverRan, f.Exit.Kind)
	// Later calls return the same exit, and so does a late shim.
	stored, found, err := readJSON[facts](dir, factsFile)
	require.NoError(t, err)
	require.True(t, found)
	require.Equal(t, 3, stored.Attempt)
	again, err := settleAttempt(t.Context(), dir, "ins_1", 3, boot, exit{Kind: exitLost}, nil)
	require.NoError(t, err)
	require.Equal(t, exitNeverRan, again.Exit.Kind)

	// This shim was killed and wrote no exit.
	require.NoError(t, writeJSON(dir, factsFile, facts{Attempt: 4, Boot: boot, Shim: proc{PID: 1 << 30, Start: 1}}, false))
	f, err = settleAttempt(t.Context(), dir, "ins_1", 4, boot, exit{Kind: exitNeverRan}, nil)
	require.NoError(t, err)
	require.Equal(t, exitLost, f.Exit.Kind)

	// This shim is from another boot. The process that has its pid now is not touched.
	require.NoError(t, writeJSON(dir, factsFile, facts{Attempt: 5, Boot: "other", Shim: proc{PID: os.Getpid(), Start: 1}}, false))
	f, err = settleAttempt(t.Context(), dir, "ins_1", 5, boot, exit{Kind: exitNeverRan}, nil)
	require.NoError(t, err)
	require.Equal(t, exitRebooted, f.Exit.Kind)
}

func TestLastOutput_IsShownWithoutSecrets(t *testing.T) {
	secrets := redact.New("sk-VICTIM-A-0123456789abcdef")
	t.Run("a secret that the limit cuts is blanked", func(t *testing.T) {
		for keep := 1; keep < 28; keep++ {
			o, err := openOutput(t.TempDir(), 4096)
			require.NoError(t, err)
			_, _ = o.Write([]byte("key sk-VICTIM-A-0123456789abcdef" + strings.Repeat("x", tailBytes-keep)))
			said := o.newestLines(secrets)[0]
			require.LessOrEqual(t, len(strings.Trim(said, "*x")), redact.MinLength-1, said)
			o.close()
		}
	})
	lost := func(secrets *redact.Values) []string {
		dir := t.TempDir()
		out := "one\nstarting with key=sk-VICTIM-A-0123456789abcdef\n"
		require.NoError(t, os.WriteFile(filepath.Join(dir, outputFile), []byte(out), 0o600))
		require.NoError(t, writeJSON(dir, factsFile, facts{Attempt: 1, Boot: "this", Shim: proc{PID: 1 << 30, Start: 1}}, false))
		f, err := settleAttempt(t.Context(), dir, "ins_1", 1, "this", exit{Kind: exitNeverRan}, secrets)
		require.NoError(t, err)
		require.Equal(t, exitLost, f.Exit.Kind)
		return f.Exit.Tail
	}
	t.Run("the agent blanks the output of a killed shim", func(t *testing.T) {
		require.Equal(t, []string{"one", "starting with key=***"}, lost(secrets))
	})
	t.Run("an agent that does not know the secrets shows no output", func(t *testing.T) {
		require.Empty(t, lost(nil))
	})
}

func TestReadJSON_DamagedFileCountsAsAbsent(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, factsFile), []byte(`{"attempt": 3, "bo`), 0o600))
	_, found, err := readJSON[facts](dir, factsFile)
	require.NoError(t, err)
	require.False(t, found)
}

func TestInstance_DeletedIsNotLocked(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "ins")
	require.NoError(t, os.Mkdir(dir, 0o700))
	lock, err := lockInstance(dir)
	require.NoError(t, err)
	_, err = lockInstance(dir)
	require.ErrorIs(t, err, errLocked)
	require.NoError(t, lock.Close())
	require.NoError(t, forgetInstance(t.Context(), dir))
	_, err = lockInstance(dir)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NoError(t, forgetInstance(t.Context(), dir), "a second call is no error")
}
