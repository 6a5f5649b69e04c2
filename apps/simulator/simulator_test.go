package simulator_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/agent"
	"github.com/windlass-run/windlass/apps/simulator"
	"github.com/windlass-run/windlass/apps/simulator/internal/stack"
	"github.com/windlass-run/windlass/pkg/service"
)

// TestMain makes this test binary the simulator, too. Scenarios execute it as the control plane, and the command all
// executes it for each scenario.
func TestMain(m *testing.M) {
	if agent.IsShim(os.Args) {
		os.Exit(agent.ShimMain(os.Args))
	}
	if len(os.Args) > 1 && !strings.HasPrefix(os.Args[1], "-") { // a command instead of flags of the test
		ctx, _ := service.SignalContext(context.Background())
		if err := simulator.Main(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// runScenario runs a scenario on a real stack, and returns the result that it printed.
func runScenario(t *testing.T, args ...string) map[string]any {
	t.Helper()
	var stdout, stderr bytes.Buffer
	err := simulator.Main(t.Context(), append(args, "--json", "--relaxed"), &stdout, &stderr)
	require.NoError(t, err, "%s%s", &stdout, &stderr)
	lines := strings.Split(strings.TrimSpace(stdout.String()), "\n")
	require.Len(t, lines, 1, "stdout has one line of JSON")
	var result map[string]any
	require.NoError(t, json.Unmarshal([]byte(lines[0]), &result))
	require.Equal(t, true, result["ok"])
	_, err = simulator.FillPage("| subject | figures | benchmark | measured |\n", []json.RawMessage{json.RawMessage(lines[0])})
	require.NoError(t, err, "the result has all figures of its row in docs/performance.md")
	if parts := result["parts"].(map[string]any); args[0] != "chaos" {
		for _, part := range []string{"controlplane-1", "mariadb", "restate", "simulator"} {
			require.Contains(t, parts, part)
		}
	}
	return result
}

// requirePositive asserts that each of the figures is above 0.
func requirePositive(t *testing.T, result map[string]any, figures ...string) {
	t.Helper()
	for _, name := range figures {
		require.Greater(t, result[name], 0.0, name)
	}
}

// requireQuotient asserts that the figure is the quotient of the two other figures.
func requireQuotient(t *testing.T, result map[string]any, figure, dividend, divisor string) {
	t.Helper()
	require.InEpsilon(t, result[dividend].(float64)/result[divisor].(float64), result[figure], 0.01, "%s: %v by %v", figure, result[dividend], result[divisor])
}

// requireAscending asserts that each figure is at least as large as the one before it.
func requireAscending(t *testing.T, result map[string]any, figures ...string) {
	t.Helper()
	for i, name := range figures[1:] {
		require.GreaterOrEqual(t, result[name], result[figures[i]], "%s is below %s", name, figures[i])
	}
}

// The test makes one small attack of each kind. The scenario fails if an attack costs another tenant too much.
func TestSiege_AttacksDoNotSlowAnotherTenant(t *testing.T) {
	var stdout, stderr bytes.Buffer
	err := simulator.Main(t.Context(), []string{"siege", "--json", "--window=700ms", "--rate=100", "--new-rate=20", "--connections=4", "--idle=400", "--uploads=16", "--poison=4", "--watches=200", "--half=396", "--held=300", "--floor=2s", "--gateway-mib=512"}, &stdout, &stderr)
	require.NoError(t, err, "%s%s", &stdout, &stderr)
	var result map[string]any
	require.NoError(t, json.Unmarshal(stdout.Bytes(), &result))
	require.Equal(t, true, result["ok"])
	require.Len(t, result["rounds"], 6)
	for _, kind := range []string{"idle", "uploads", "poison", "watches", "half", "held"} {
		requirePositive(t, result, kind+"_p99_ms", kind+"_rss_mib")
		require.Zero(t, result[kind+"_ejected"], kind)
	}
}

func TestLatency_EveryChangeReachesItsAgent(t *testing.T) {
	t.Parallel()
	result := runScenario(t, "latency", "--regions=8", "--apps=4", "--changes=40", "--control-planes=2")
	requirePositive(t, result, "p50_ms", "p99_ms", "floor_p50_ms", "floor_p99_ms")
	require.Equal(t, 40.0, result["delivered"])
	require.Contains(t, result["parts"], "controlplane-2")
}

func TestBurst_DeliversChangesOfTheAPIAndOfAnotherWriter(t *testing.T) {
	t.Parallel()
	result := runScenario(t, "burst", "--changes=30", "--regions=3", "--rounds=2")
	requirePositive(t, result, "p50_ms", "events_per_s", "feed_events_per_s", "feed_p99_ms")
	requireAscending(t, result, "p50_ms", "p99_ms")
	requireQuotient(t, result, "of_shared", "events_per_s", "shared_events_per_s")
	// The scenario itself checks that each change arrives.
	rounds := result["rounds"].([]any)
	require.Len(t, rounds, 4)
	for i, piece := range []string{"calls", "calls", "transactions", "transactions"} {
		require.Equal(t, 10.0, rounds[i].(map[string]any)[piece], "round %d", i)
	}
}

func TestSnapshot_IsCompleteAtEverySize(t *testing.T) {
	t.Parallel()
	result := runScenario(t, "snapshot", "--items=4,20", "--repeat=2")
	requirePositive(t, result, "items_per_s", "items_per_s_4", "items_per_s_20",
		"floor_read_items_per_s", "floor_store_items_per_s", "floor_store_durable_items_per_s")
	// The kernel counts processor time in ticks of 10 ms. So few items may take none.
	require.GreaterOrEqual(t, result["cpu_us_per_item"], 0.0)
	require.Len(t, result["rounds"], 2)
}

func TestIngest_StoresTheLastStateOfEveryInstance(t *testing.T) {
	t.Parallel()
	for _, more := range [][]string{nil, {"--bare"}} {
		result := runScenario(t, append([]string{"ingest", "--instances=200", "--regions=2", "--window=1s"}, more...)...)
		requirePositive(t, result, "reports_per_s", "upserts_per_s")
		requireAscending(t, result, "reports_per_s", "rows_per_s")
		requireQuotient(t, result, "ratio", "rows_per_s", "upserts_per_s")
	}
}

func TestIdle_MeasuresAgentsThatStayConnected(t *testing.T) {
	t.Parallel()
	result := runScenario(t, "idle", "--agents=0,5", "--window=1s", "--settle=1s")
	rounds := result["rounds"].([]any)
	require.Len(t, rounds, 2)
	for i, agents := range []float64{0, 5} {
		round := rounds[i].(map[string]any)
		require.Equal(t, agents, round["agents"])
		require.Equal(t, agents, round["snapshots"], "an agent gets one snapshot")
		require.GreaterOrEqual(t, round["qps"], 0.0, "a second without a statement is possible")
		require.Greater(t, round["rss_mib"], 0.0)
	}
	last, first := rounds[1].(map[string]any), rounds[0].(map[string]any)
	require.InDelta(t, last["qps"], result["qps"], 0.01)
	require.InDelta(t, (last["qps"].(float64)-first["qps"].(float64))/5, result["qps_per_agent"], 0.01)
	require.InDelta(t, 1024*(last["rss_mib"].(float64)-first["rss_mib"].(float64))/5, result["rss_per_agent_kib"], 1)
}

func TestConverge_EndsReadyAlthoughSomeStartsFail(t *testing.T) {
	t.Parallel()
	result := runScenario(t, "converge", "--instances=60", "--regions=3", "--deployments=2", "--rounds=2", "--start-p50=20ms", "--start-p99=100ms", "--fail=0.05")
	requirePositive(t, result, "seconds")
	require.GreaterOrEqual(t, result["cpu_s"], 0.0, "it is counted in ticks of 10 ms")
	require.Len(t, result["rounds"], 2)
}

func TestConverge_ComparesGroupsWithAppsOfOneRole(t *testing.T) {
	t.Parallel()
	result := runScenario(t, "converge", "--instances=48", "--regions=3", "--rounds=2", "--again=groups")
	requirePositive(t, result, "groups_ratio")
	rounds := result["rounds"].([]any)
	require.Len(t, rounds, 2)
	for i, units := range []float64{1, 8} {
		require.Equal(t, units, rounds[i].(map[string]any)["units"])
	}
}

func TestRollouts_InWavesEndForFewAndManyReplicas(t *testing.T) {
	t.Parallel()
	result := runScenario(t, "rollouts", "--apps=4", "--regions=3", "--waves=2", "--replicas=1,6", "--bake=200ms")
	requirePositive(t, result, "rollouts_per_s", "statements_per_rollout", "steps_per_rollout", "cpu_ms_per_rollout", "statements_ratio", "back_s")
	require.Len(t, result["rounds"], 2)
}

func TestDeploys_CompleteAtEveryConcurrency(t *testing.T) {
	t.Parallel()
	result := runScenario(t, "deploys", "--apps=6", "--concurrency=1,4")
	requirePositive(t, result, "deploys_per_s", "p50_ms", "p99_ms", "invocations_per_s", "ratio")
	for _, round := range result["rounds"].([]any) {
		require.Equal(t, 6.0, round.(map[string]any)["complete"])
	}
}

func TestReconnect_BringsEveryAgentBackWithoutASnapshot(t *testing.T) {
	t.Parallel()
	result := runScenario(t, "reconnect", "--agents=10", "--apps=3", "--cuts=1")
	requirePositive(t, result, "seconds", "peak_cpu_percent")
	require.Equal(t, 0.0, result["snapshots"])
	require.Equal(t, 10.0, result["resumed"])
}

func TestRestart_LosesNoChangeAndSendsNoSnapshot(t *testing.T) {
	t.Parallel()
	result := runScenario(t, "restart", "--agents=30", "--apps=6", "--quiet=2s", "--pause=500ms")
	requirePositive(t, result, "changes_before", "changes_during", "p99_ms_during", "drain_ms", "calls")
	require.Equal(t, 0.0, result["missed"])
	require.Equal(t, 0.0, result["snapshots"])
	require.Equal(t, 0.0, result["failed_calls"])
	require.Equal(t, 30.0, result["resumed"])
	require.Len(t, result["rounds"], 3)
}

func TestSlow_DeliversEveryChangeInTheEnd(t *testing.T) {
	t.Parallel()
	result := runScenario(t, "slow", "--agents=3", "--changes=20", "--rounds=1")
	requirePositive(t, result, "p50_ms", "p50_ms_without")
	requireAscending(t, result, "p50_ms", "p99_ms")
	requireAscending(t, result, "p50_ms_without", "p99_ms_without")
	requireQuotient(t, result, "ratio", "p99_ms", "p99_ms_without")
	require.Len(t, result["rounds"], 1)
}

func TestFlood_StaysInItsQuotaAndDoesNotSlowAnotherWorkspace(t *testing.T) {
	t.Parallel()
	result := runScenario(t, "flood", "--deploys=8", "--rounds=1", "--calls=100", "--starts-per-minute=60", "--burst=5")
	requirePositive(t, result, "p50_ms", "p50_ms_without", "admitted_per_s", "refused")
	requireAscending(t, result, "p50_ms", "p99_ms")
	requireAscending(t, result, "p50_ms_without", "p99_ms_without")
	requireAscending(t, result, "admitted_per_s", "refused_per_s")
	requireQuotient(t, result, "ratio", "p99_ms", "p99_ms_without")
}

func TestOverload_LosesNoStateAndDeliversEdges(t *testing.T) {
	t.Parallel()
	result := runScenario(t, "overload", "--instances=400", "--regions=2", "--edges=1", "--calm=1s", "--window=3s", "--start=300ms")
	requirePositive(t, result, "capacity_per_s", "offered_per_s", "durable_per_s", "edges", "edge_p99_ms", "level_s", "plane_peak_mib")
	require.Equal(t, 0.0, result["lost"])
}

func TestRetention_DatabaseStopsGrowing(t *testing.T) {
	t.Parallel()
	result := runScenario(t, "retention", "--days=4", "--settle=3", "--apps=1", "--regions=1", "--deploys=4", "--scales=2", "--crashes=2",
		"--keep-changes=20", "--keep-versions=5", "--keep-history=40")
	requirePositive(t, result, "rows", "mib", "forgotten")
	require.Len(t, result["rounds"], 4)
	require.Contains(t, result["detail_rows"], "region_changes")
}

func TestScaling_DecisionFollowsEveryJumpOfTheLoad(t *testing.T) {
	t.Parallel()
	result := runScenario(t, "scaling", "--apps=6", "--regions=2", "--each=2", "--window=4s", "--settle=1s", "--period=10s", "--floor=40s")
	requirePositive(t, result, "jumps", "p99_ms", "jumps_queries_per_s")
	require.Len(t, result["rounds"], 2)
}

// The test does not run in parallel, because other tests would take the processor from the instances.
func TestFollow_ReplicasFollowAndNoRequestFails(t *testing.T) {
	dir := t.TempDir()
	result := runScenario(t, "follow", "--steps=1:3s,24:12s", "--target=10s", "--plot="+dir)
	requirePositive(t, result, "requests", "most_replicas", "worst_p95_ms")
	require.Equal(t, 0.0, result["failed"])
	require.Len(t, result["rounds"], 2)
	files, err := filepath.Glob(filepath.Join(dir, "*-follow.*"))
	require.NoError(t, err)
	require.Len(t, files, 2, "the plot and its series")
}

func TestDashboards_ViewersSeeTheFleetWhileChangesArrive(t *testing.T) {
	t.Parallel()
	result := runScenario(t, "dashboards", "--regions=2", "--apps=6", "--replicas=2", "--viewers=10", "--keys=1", "--rounds=1", "--changes=12")
	requirePositive(t, result, "p99_ms", "p99_ms_without")
	requireQuotient(t, result, "ratio", "p99_ms", "p99_ms_without")
	// The scenario itself checks that all streams are open and that each change arrives.
	require.Equal(t, 24.0, result["rounds"].([]any)[0].(map[string]any)["changes"])
}

func TestPairs_NoRequestFailsButThoseOnKilledServers(t *testing.T) {
	result := runScenario(t, "pairs", "--requests=40", "--rate=20", "--refused=1000", "--only=update-both,kill-decode,kill-prefill,kill-agent,replace-gateway")
	require.GreaterOrEqual(t, result["least"], 40.0)
	require.GreaterOrEqual(t, result["killed"], 2.0)
	require.Equal(t, 0.0, result["failed"])
	require.Equal(t, 0.0, result["mixed"])
	require.Len(t, result["rounds"], 5)
}

func TestRegions_DeliverEveryChangeInEveryFleet(t *testing.T) {
	t.Parallel()
	result := runScenario(t, "regions", "--exist=3,6", "--touch=1,3", "--apps=2", "--changes=20")
	rounds := result["rounds"].([]any)
	require.Len(t, rounds, 4)
	for i, sizes := range [][2]float64{{3, 1}, {3, 3}, {6, 1}, {6, 3}} {
		round := rounds[i].(map[string]any)
		require.Equal(t, [2]float64{round["exist"].(float64), round["touch"].(float64)}, sizes)
		require.Equal(t, 20*sizes[1], round["delivered"], "each change reaches each region of its app once: %v", round)
		require.Greater(t, round["p99_ms"], 0.0)
		require.GreaterOrEqual(t, round["gross_cpu_ms_per_change"], round["cpu_ms_per_change"])
	}
	require.GreaterOrEqual(t, result["cpu_ms_per_change"], 0.0, "it is counted in ticks of 10 ms")
}

func TestBaselines_MeasureEveryPartAlone(t *testing.T) {
	t.Parallel()
	result := runScenario(t, "baselines", "--window=3s", "--batch=100", "--regions=4")
	requirePositive(t, result, "upserts_per_s", "feed_transactions_per_s", "invocations_per_s", "frames_per_s", "streams_per_s")
	require.InEpsilon(t, 4*result["feed_transactions_per_s"].(float64), result["feed_changes_per_s"], 0.01, "each transaction has a change in each of 4 regions")
}

func TestResultsFile_IsWrittenByTheCommandAll(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "results.json")
	var stdout, stderr bytes.Buffer
	require.NoError(t, simulator.Main(t.Context(), []string{"all", "--small", "--only=snapshot", "--out=" + file, "--relaxed"}, &stdout, &stderr), "%s", &stderr)
	require.Contains(t, stdout.String(), file)
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	var report struct {
		OK      bool
		Results []map[string]any
	}
	require.NoError(t, json.Unmarshal(text, &report))
	require.True(t, report.OK)
	require.Len(t, report.Results, 1)
	require.Equal(t, "snapshot", report.Results[0]["scenario"])
}

func TestRun_InterruptedLeavesNoFilesAndNoProcesses(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	ctx, cancel := context.WithCancelCause(t.Context())
	var stdout bytes.Buffer
	interrupted := errors.New("interrupted during the run")
	err := simulator.Main(ctx, []string{"latency", "--regions=3", "--apps=2", "--changes=100000", "--relaxed"}, &stdout, writer(func(p []byte) {
		if bytes.Contains(p, []byte("making")) && bytes.Contains(p, []byte("changes")) {
			cancel(interrupted)
		}
	}))
	require.Error(t, err)
	require.Contains(t, stdout.String(), interrupted.Error())
	left, err := filepath.Glob(filepath.Join(temp, "windlass-sim-*"))
	require.NoError(t, err)
	require.Empty(t, left)
	commands, err := filepath.Glob("/proc/[0-9]*/cmdline")
	require.NoError(t, err)
	for _, c := range commands {
		text, _ := os.ReadFile(c)
		require.NotContains(t, string(text), temp, "a process still runs")
	}
}

// writer is an io.Writer that calls the function.
type writer func(p []byte)

func (w writer) Write(p []byte) (int, error) {
	w(p)
	return len(p), nil
}

func TestMakeResultFolder_IsKeptByOtherRuns(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	dir, remove, err := simulator.MakeResultFolder()
	require.NoError(t, err)
	long := time.Now().Add(-time.Hour)
	require.NoError(t, os.Chtimes(dir, long, long))
	other, lock, err := stack.MakeRoot(os.TempDir())
	require.NoError(t, err)
	require.DirExists(t, dir, "another run removes what runs before it left")
	require.NoError(t, lock.Unlock())
	require.NotEqual(t, dir, other)
	remove()
	require.NoDirExists(t, dir)
}

func TestRun_FailsAboveItsMemoryLimit(t *testing.T) {
	t.Parallel()
	var stdout, stderr bytes.Buffer
	require.Error(t, simulator.Main(t.Context(), []string{"latency", "--regions=2", "--apps=1", "--max-memory-gib=0.1", "--relaxed"}, &stdout, &stderr))
	require.Contains(t, stdout.String(), "above the limit of 102 MiB")
}

func TestFlags_ErrorNamesTheFlag(t *testing.T) {
	var out bytes.Buffer
	require.ErrorContains(t, simulator.Main(t.Context(), []string{"latency", "--regionz=8"}, &out, &out), "--regionz")
	require.ErrorContains(t, simulator.Main(t.Context(), []string{"latency", "--rate=0", "--json"}, &out, &out), "latency failed")
	require.Contains(t, out.String(), "--rate=0: has to be above 0")
}

func TestChaos_FindsNoViolation(t *testing.T) {
	result := runScenario(t, "chaos", "--minutes=0.05", "--faults=5s", "--regions=4", "--converge=60s", "--idle=90s")
	requirePositive(t, result, "rounds", "faults", "requests", "zeros")
	require.Equal(t, 0.0, result["violations"])
	require.Contains(t, result, "detail_faults")
	require.Contains(t, result, "reports")
	require.Contains(t, result["detail_reports"], "doubled")
	require.Contains(t, result, "scalings")
}
