package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// TestProduct runs tests in parallel on one installation, whose parts are not killed. Each test has its own
// apps.
func TestProduct(t *testing.T) {
	t.Parallel()
	s := newStack(t, stackConfig{issuer: true})
	for name, test := range map[string]func(*testing.T, *stack){
		"an app is deployed to two regions, updated, rolled back and deleted": testLifecycle,
		"scaling starts and stops only the instances that it must":            testScale,
		"variables make a version, and secrets reach only the process":        testVariablesAndSecrets,
		"each region runs what its overrides say":                             testOverrides,
		"a secret in one region's override reaches only that region":          testRegionSecret,
		"a change cancels or supersedes the rollout in flight":                testInFlight,
		"a repeated call acts once":                                           testIdempotency,
		"several users change one app at once":                                testCrowd,
		"output and restart of one instance":                                  testOneInstance,

		"a version that crashes fails and leaves the old one alone":           testCrashing,
		"a version that is never ready fails and leaves the old one alone":    testNeverReady,
		"a version without its program fails and leaves the old one alone":    testMissingProgram,
		"a version whose port clashes fails and leaves the old one alone":     testPortClash,
		"a version that no region can run fails and leaves the old one alone": testUnrunnable,
		"a first version that fails leaves nothing":                           testFirstFails,
		"a version whose replicas become unready goes back":                   testHealthLost,
		"a version goes back once its limit of failed instances is reached":   testAllCrash,
		"a version that is late fails at its deadline":                        testDeadline,
		"a version rolls out in waves, replica by replica":                    testStagedRollout,
		"a version that crashes in the second wave goes back everywhere":      testStagedRollback,
		"a rollout that is aborted while it bakes goes back":                  testStagedAbort,
		"a canary waits for promotion in each region":                         testCanary,
		"a deploy takes the steps of its plan":                                testPlan,
		"a canary that crashes at its second step goes back":                  testCanaryCrash,
		"a green version waits for promotion, and the blue one is a way back": testBlueGreen,
		"two versions serve side by side by their weights":                    testPins,
		"an agent's credential opens its own region only":                     testAgentCredential,
		"join tokens and keys end":                                            testCredentialsEnd,
		"bad input is refused with its field":                                 testBadInput,
		"one trace from the call to both regions":                             testTrace,
		"every program has its metrics, and reports its health":               testMetrics,
		"the command line deploys, waits and explains":                        testCLI,
		"people sign in at an issuer with a browser":                          testSignIn,
		"the example with a real model":                                       testRealModel,
		"the examples that name an engine and a model":                        testServe,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, s)
		})
	}
}

func testLifecycle(t *testing.T, s *stack) {
	const app = "lifecycle"
	v1 := s.deploy(t, app, spec(label("v1"), replicas(2)))
	require.Equal(t, int32(1), v1.Version)
	seen := s.watchUntil(t, app, func(w *windlassv1.WatchAppResponse) bool {
		return w.App.Status == windlassv1.AppStatus_APP_STATUS_READY
	})
	require.Contains(t, seen, windlassv1.AppStatus_APP_STATUS_PROGRESSING, "the stream shows the progress, not only the end")
	s.waitLive(t, app, 1)

	got := must(t, s.owner.apps.GetApp, &windlassv1.GetAppRequest{App: named(app)}).App
	require.Equal(t, int32(4), got.Replicas)
	require.Equal(t, int32(4), got.ReadyReplicas)
	require.ElementsMatch(t, []string{us, eu}, got.Regions)
	require.Len(t, got.Urls, 4)
	for _, url := range got.Urls {
		text, version := chat(t, url, "windlass turns the ring")
		require.Equal(t, "windlass turns the ring", text)
		require.Equal(t, "v1", version)
	}
	require.Len(t, s.runningOf(app), 4)

	same := s.deploy(t, app, spec(label("v1"), replicas(2)))
	require.True(t, same.Unchanged, "the same spec makes no version: %v", same)

	v2 := s.deploy(t, app, spec(label("v2"), replicas(2)))
	require.Equal(t, int32(2), v2.Version)
	got = s.waitLive(t, app, 2)
	require.Equal(t, int32(1), got.PreviousVersion)
	s.waitGone(t, v1.DeploymentId)
	for _, url := range s.urls(t, app, 4) {
		_, version := chat(t, url, "again")
		require.Equal(t, "v2", version)
	}

	back := must(t, s.owner.apps.Rollback, &windlassv1.RollbackRequest{Mutation: mutation(), App: named(app), Version: 1, Message: "v2 is worse"})
	require.Equal(t, int32(3), back.Version)
	require.Equal(t, int32(1), back.FromVersion)
	s.waitLive(t, app, 3)
	s.waitGone(t, v2.DeploymentId)
	for _, url := range s.urls(t, app, 4) {
		_, version := chat(t, url, "back")
		require.Equal(t, "v1", version, "v3 runs what v1 ran")
	}
	first := must(t, s.owner.deployments.GetDeployment, &windlassv1.GetDeploymentRequest{App: named(app), Version: 1}).Deployment
	third := must(t, s.owner.deployments.GetDeployment, &windlassv1.GetDeploymentRequest{App: named(app), Version: 3}).Deployment
	require.Equal(t, first.Spec.Args, third.Spec.Args)
	require.Equal(t, "rollback", third.Source)
	require.True(t, third.Live)
	require.Equal(t, windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_SUPERSEDED, first.Status)

	s.requireHistory(t, app, v1, v2)
	s.requireDeleted(t, got.Id, app)
}

// requireHistory asserts that the history and the audit log have who did what and why.
func (s *stack) requireHistory(t *testing.T, app string, versions ...*windlassv1.DeployResponse) {
	t.Helper()
	history := must(t, s.owner.history.ListHistory, &windlassv1.ListHistoryRequest{App: named(app), Page: &windlassv1.PageRequest{Size: 500}})
	regionsReady := map[string]int{}
	live := map[int32]bool{}
	for _, e := range history.Entries {
		require.NotEmpty(t, e.What)
		require.NotEmpty(t, e.Who, e.What)
		require.NotZero(t, e.At, e.What)
		switch e.What {
		case "RegionReady":
			require.Contains(t, e.Why, "2 of 2 replicas ready")
			regionsReady[e.Region]++
		case "RegionMoved":
			require.Contains(t, e.Why, "2 of 2; wanted: 2")
			regionsReady[e.Region]++
		case "LiveMoved":
			live[e.Version] = true
		}
	}
	require.Equal(t, map[string]int{us: 3, eu: 3}, regionsReady)
	require.Equal(t, map[int32]bool{1: true, 2: true, 3: true}, live)

	audit := must(t, s.owner.history.ListAudit, &windlassv1.ListAuditRequest{Page: &windlassv1.PageRequest{Size: 500}})
	calls := map[string]int{}
	for _, e := range audit.Entries {
		if strings.Contains(e.After+e.Before, versions[0].AppId) || e.ResourceId == versions[0].AppId {
			require.NotEmpty(t, e.Actor)
			require.Contains(t, e.Source, "windlass-e2e")
			calls[e.Procedure]++
		}
	}
	require.GreaterOrEqual(t, calls["/windlass.v1.AppService/Deploy"], 2, "%v", calls)
	require.GreaterOrEqual(t, calls["/windlass.v1.AppService/Rollback"], 1, "%v", calls)
}

// requireDeleted deletes the app, and asserts that nothing of it is left.
func (s *stack) requireDeleted(t *testing.T, id, app string) {
	t.Helper()
	must(t, s.owner.apps.DeleteApp, &windlassv1.DeleteAppRequest{Mutation: mutation(), App: named(app), Why: "the test is over"})
	s.eventually(t, app+" deleted", func(ctx context.Context) error {
		if left := s.runningOf(app); len(left) > 0 {
			return fmt.Errorf("it still runs:\n%s", describe(left))
		}
		return s.nothingClaimsToRun(ctx, id)
	})
	s.eventually(t, app+" forgotten", func(ctx context.Context) error {
		_, err := s.owner.apps.GetApp(ctx, &windlassv1.GetAppRequest{App: named(app)})
		if err == nil {
			return errors.New("it is still there")
		}
		if reasonOf(err) != windlassv1.ErrorReason_ERROR_REASON_NOT_FOUND {
			return err
		}
		return nil
	})
}

func testScale(t *testing.T, s *stack) {
	const app = "scale"
	s.deployReady(t, app, spec(replicas(1)))
	one := s.runningOf(app)
	require.Len(t, one, 2)

	must(t, s.owner.apps.Scale, &windlassv1.ScaleRequest{Mutation: mutation(), App: named(app), Replicas: 3})
	s.urls(t, app, 6)
	s.waitLive(t, app, 1)
	three := s.runningOf(app)
	require.Len(t, three, 6)
	require.Subset(t, keysOf(three), keysOf(one), "scaling up touched running instances")

	must(t, s.owner.apps.Scale, &windlassv1.ScaleRequest{Mutation: mutation(), App: named(app), Replicas: 1, Region: us})
	s.urls(t, app, 4)
	s.waitLive(t, app, 1)
	s.eventually(t, "four instances run", func(context.Context) error { return wantRunning(s.runningOf(app), map[string]int{us: 1, eu: 3}) })
	require.Subset(t, keysOf(three), keysOf(s.runningOf(app)), "scaling down started something")

	scaled := s.deploy(t, app, spec(replicas(2)))
	require.True(t, scaled.Scaled, "only replicas differ: %v", scaled)
	s.eventually(t, "two in each region", func(context.Context) error { return wantRunning(s.runningOf(app), map[string]int{us: 2, eu: 2}) })

	must(t, s.owner.apps.Scale, &windlassv1.ScaleRequest{Mutation: mutation(), App: named(app), Replicas: 0})
	s.eventually(t, "nothing runs", func(context.Context) error { return wantRunning(s.runningOf(app), nil) })
	s.waitLive(t, app, 1)
	must(t, s.owner.apps.Scale, &windlassv1.ScaleRequest{Mutation: mutation(), App: named(app), Replicas: 1})
	s.urls(t, app, 2)
}

func wantRunning(processes []process, want map[string]int) error {
	got := map[string]int{}
	for _, p := range processes {
		got[p.region()]++
	}
	if len(got) != len(want) {
		return fmt.Errorf("%v run, should be %v", got, want)
	}
	for region, n := range want {
		if got[region] != n {
			return fmt.Errorf("%v run, should be %v", got, want)
		}
	}
	return nil
}

// urls waits until the app has n URLs, and returns them.
func (s *stack) urls(t *testing.T, app string, n int) []string {
	t.Helper()
	var urls []string
	s.eventually(t, fmt.Sprintf("%d instances of %s serve", n, app), func(ctx context.Context) error {
		resp, err := s.owner.apps.GetApp(ctx, &windlassv1.GetAppRequest{App: named(app)})
		if err != nil {
			return err
		}
		if urls = resp.App.Urls; len(urls) != n {
			return fmt.Errorf("%d do: %v", len(urls), urls)
		}
		return nil
	})
	return urls
}

// watchUntil follows the app's stream, and returns the statuses that it showed.
func (s *stack) watchUntil(t *testing.T, app string, end func(*windlassv1.WatchAppResponse) bool) []windlassv1.AppStatus {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	stream, err := s.owner.apps.WatchApp(ctx, &windlassv1.WatchAppRequest{App: named(app)})
	require.NoError(t, err)
	defer func() { _ = stream.Close() }()
	var seen []windlassv1.AppStatus
	for stream.Receive() {
		msg := stream.Msg()
		if len(seen) == 0 || seen[len(seen)-1] != msg.App.GetStatus() {
			seen = append(seen, msg.App.GetStatus())
		}
		if end(msg) {
			return seen
		}
	}
	require.Fail(t, "the stream ended", "%v; it showed %v", stream.Err(), seen)
	return nil
}

// chat sends a prompt to a model server, and returns its answer and its version.
func chat(t *testing.T, url, prompt string) (text, version string) {
	t.Helper()
	body, err := json.Marshal(map[string]any{
		"model": "echo", "messages": []map[string]string{{"role": "user", "content": prompt}},
	})
	require.NoError(t, err)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/v1/chat/completions", bytes.NewReader(body))
	require.NoError(t, err)
	req.Header.Set("Content-Type", "application/json")
	resp, err := plainHTTP.Do(req)
	require.NoError(t, err, "chat with %s", url)
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, resp.StatusCode, "%s", answer)
	var completion struct {
		Choices []struct {
			Message struct{ Content string }
		}
	}
	require.NoError(t, json.Unmarshal(answer, &completion))
	require.Len(t, completion.Choices, 1, "%s", answer)
	return completion.Choices[0].Message.Content, resp.Header.Get("X-Model-Version")
}

func testOneInstance(t *testing.T, s *stack) {
	const app = "one"
	s.deployReady(t, app, spec(replicas(2), regions(us)))
	list := must(t, s.owner.deployments.ListInstances, &windlassv1.ListInstancesRequest{App: named(app)})
	require.Len(t, list.Instances, 2)
	chosen := list.Instances[0]
	before := s.runningOf(app)

	logs := must(t, s.owner.deployments.GetLogs, &windlassv1.GetLogsRequest{Instance: chosen.Id, TailLines: 50})
	require.NotEmpty(t, logs.Data)

	testFollowedLogs(t, s, app, func() {
		must(t, s.owner.deployments.RestartInstance, &windlassv1.RestartInstanceRequest{Mutation: mutation(), Instance: chosen.Id})
	})
	s.eventually(t, "only that instance has a new process", func(context.Context) error {
		now := s.runningOf(app)
		if len(now) != 2 || slices.Equal(keysOf(now), keysOf(before)) {
			return fmt.Errorf("before:\n%s\nnow:\n%s", describe(before), describe(now))
		}
		return nil
	})
	for _, p := range before {
		if p.instance() != chosen.Id {
			require.True(t, p.alive(), "the other instance was restarted, too")
		}
	}
	s.waitLive(t, app, 1)
}
