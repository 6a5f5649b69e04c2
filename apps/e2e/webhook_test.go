package e2e

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

const signingSecret, signingKey = "checks", "hunter2-and-more"

// heard is a received call of a webhook.
type heard struct {
	ID          string
	Attempt     int
	Check       string
	Workspace   struct{ ID, Name string }
	Environment struct{ ID, Name string }
	App         struct{ ID, Name string }
	RolloutID   string
	Deployment  struct {
		ID      string
		Version int
	}
	OldDeployment struct {
		ID      string
		Version int
	}
	Region, Wave, Stage string
	Step                int
	// wrong describes a fault of the call itself.
	wrong error
}

// verdicts is a webhook that answers with verdicts.
type verdicts struct {
	port int

	mu     sync.Mutex
	calls  []heard
	answer string // empty: the webhook does not answer
}

func newVerdicts(t *testing.T) *verdicts { return &verdicts{port: freePort(t)} }

// hook returns the webhook's configuration, with a token in its URL, as users have it.
func (v *verdicts) hook() *windlassv1.WebHook {
	return &windlassv1.WebHook{Url: "http://" + address(v.port) + "/verdict?token=mine", SigningSecret: signingSecret, Timeout: seconds(10)}
}

func (v *verdicts) say(answer string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.answer = answer
}

func (v *verdicts) heard() []heard {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.Clone(v.calls)
}

// serve answers until the test ends.
func (v *verdicts) serve(t *testing.T) {
	t.Helper()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		call := read(r)
		v.mu.Lock()
		v.calls = append(v.calls, call)
		answer := v.answer
		v.mu.Unlock()
		if answer == "" {
			<-r.Context().Done()
			return
		}
		_, _ = io.WriteString(w, answer)
	}))
	var listen net.ListenConfig
	l, err := listen.Listen(t.Context(), "tcp", address(v.port))
	require.NoError(t, err)
	_ = server.Listener.Close()
	server.Listener = l
	server.Start()
	t.Cleanup(server.Close)
	t.Cleanup(server.CloseClientConnections)
}

func read(r *http.Request) (call heard) {
	body, err := io.ReadAll(r.Body)
	if err == nil {
		err = json.Unmarshal(body, &call)
	}
	mac := hmac.New(sha256.New, []byte(signingKey))
	mac.Write(body)
	switch want := "sha256=" + hex.EncodeToString(mac.Sum(nil)); {
	case err != nil:
	case r.Method != http.MethodPost:
		err = fmt.Errorf("it is a %s", r.Method)
	case r.Header.Get("Windlass-Signature") != want:
		err = fmt.Errorf("it is signed %q", r.Header.Get("Windlass-Signature"))
	case call.ID == "" || r.Header.Get("Idempotency-Key") != call.ID:
		err = fmt.Errorf("it is %q in the header and %q in the body", r.Header.Get("Idempotency-Key"), call.ID)
	}
	call.wrong = err
	return call
}

// judged returns the policy of a canary of one step that the webhook judges.
func judged(v *verdicts) *windlassv1.RolloutPolicy {
	policy := euThenUs()
	policy.Strategy = windlassv1.RolloutPolicy_STRATEGY_CANARY
	policy.Steps = []*windlassv1.CanaryStep{{Weight: 40, Pause: "3s"}}
	policy.Analysis = []*windlassv1.AnalysisCheck{{Name: "smoke", Webhook: v.hook(), Interval: seconds(2), FailureLimit: 1}}
	return policy
}

// TestWebHooks judges real rollouts with a real server.
func TestWebHooks(t *testing.T) { //nolint:tparallel // its subtests share one stack
	t.Parallel()
	s := newStack(t, stackConfig{})
	must(t, s.owner.environments.SetSecret, &windlassv1.SetSecretRequest{
		Mutation: mutation(), Environment: env, Name: signingSecret, Value: signingKey,
	})
	t.Run("a canary that a webhook fails goes back, and says why", func(t *testing.T) { testHookFails(t, s) })
	t.Run("an unreachable webhook holds a rollout until it is back", func(t *testing.T) { testHookHolds(t, s) })
	t.Run("a rollback is notified with a signature, again until it is received", func(t *testing.T) { testNotified(t, s) })
	t.Run("a control plane that is killed during a call repeats the same call", func(t *testing.T) { testHookAskedAgain(t, s) })
}

func testHookFails(t *testing.T, s *stack) {
	const app = "judged-bad"
	v := newVerdicts(t)
	v.serve(t)
	v.say(`{"verdict": "fail", "message": "30 of 100 answers were right\u001b[31m", "figure": 0.3}`)
	v1 := s.deployBy(t, app, spec(replicas(2), label("good")), judged(v))
	s.waitLive(t, app, 1)
	require.Empty(t, v.heard(), "a first deployment is not judged")
	before := s.runningOf(app)
	stop := s.bounds(t, app, 4, 3)
	v2 := s.deployBy(t, app, spec(replicas(2), label("bad")), judged(v))
	d := s.waitFailed(t, app, v2)
	require.Equal(t, "AnalysisFailed", d.Reason, d.Message)
	require.Regexp(t, eu+`, in wave canary .*smoke: 0\.3: 30 of 100 answers were right \[31m; failures: 2, limit 1`, d.Message)
	s.waitLive(t, app, 1)
	stop()
	requireSame(t, before, s.runningOf(app), "the old version was touched")
	for _, region := range []string{eu, us} {
		s.requireRouted(t, region, v1.AppId, map[string]int32{v1.DeploymentId: 100})
	}
	s.requireNothingOf(t, v2.DeploymentId)

	calls := v.heard()
	require.Len(t, calls, 2)
	for i, c := range calls {
		require.NoError(t, c.wrong)
		require.Equal(t, []any{i + 1, "smoke", app, v1.AppId, v2.RolloutId, eu, "canary", "step", 1},
			[]any{c.Attempt, c.Check, c.App.Name, c.App.ID, c.RolloutID, c.Region, c.Wave, c.Stage, c.Step})
		require.Equal(t, []any{v2.DeploymentId, 2, v1.DeploymentId, 1},
			[]any{c.Deployment.ID, c.Deployment.Version, c.OldDeployment.ID, c.OldDeployment.Version})
		require.Equal(t, s.keys.WorkspaceID, c.Workspace.ID)
		require.NotEmpty(t, c.Workspace.Name)
		require.NotEmpty(t, c.Environment.Name)
	}
	require.NotEqual(t, calls[0].ID, calls[1].ID)
	history := s.cli(t).ok("history", app)
	require.Regexp(t, `CheckFailed.*smoke in wave canary: 0\.3: 30 of 100 answers were right`, history)
	require.Contains(t, history, "RolloutGoingBack")
	require.NotRegexp(t, `RegionBegun.*`+us, history, "the next wave never saw it")
	require.NotContains(t, history, "token=mine")
	require.NotContains(t, history, signingKey)
}

func testHookHolds(t *testing.T, s *stack) {
	const app = "judged-silently"
	v := newVerdicts(t)
	v1 := s.deployBy(t, app, spec(replicas(2), label("v1")), judged(v))
	s.waitLive(t, app, 1)
	v2 := s.deployBy(t, app, spec(replicas(2), label("v2")), judged(v))
	held := func(says string) {
		t.Helper()
		s.waitHeld(t, v2.RolloutId, says)
		s.requireRouted(t, eu, v1.AppId, map[string]int32{v1.DeploymentId: 60, v2.DeploymentId: 40})
		s.requireRouted(t, us, v1.AppId, map[string]int32{v1.DeploymentId: 100})
	}
	held("the connection is refused")
	s.restart(partControlPlane)
	held("the connection is refused")
	v.say(`{"verdict": "inconclusive", "message": "30 of 100 prompts are asked"}`)
	v.serve(t)
	held("30 of 100 prompts are asked")
	says := regexp.MustCompile(`Status: +held: smoke in ` + eu + ` for \d+s: 30 of 100 prompts are asked; .windlass rollout promote`)
	s.eventually(t, "the status says what holds it", func(context.Context) error {
		if status := s.cli(t).ok("rollout", "status", app); !says.MatchString(status) {
			return errors.New(status)
		}
		return nil
	})
	v.say(`{"verdict": "pass", "figure": 0.98}`)
	s.waitLive(t, app, 2)
	for _, w := range s.rolloutOf(t, v2.RolloutId).Progress.Waves {
		for _, g := range w.Regions {
			require.Len(t, g.Checks, 1, g.Region)
			require.Equal(t, windlassv1.CheckProgress_STATE_PASSED, g.Checks[0].State, g.Checks[0].Message)
			require.InDelta(t, 0.98, g.Checks[0].GetFigure(), 0)
		}
	}
	history := s.cli(t).ok("history", app)
	require.Regexp(t, `CheckHeld.*smoke in wave canary: .*the connection is refused`, history)
	require.NotContains(t, history, address(v.port))
}

func testHookAskedAgain(t *testing.T, s *stack) {
	const app = "judged-twice"
	v := newVerdicts(t)
	v.serve(t)
	s.deployBy(t, app, spec(replicas(2), label("v1")), judged(v))
	s.waitLive(t, app, 1)
	s.deployBy(t, app, spec(replicas(2), label("v2")), judged(v))
	s.eventually(t, "the webhook is called", func(context.Context) error {
		if len(v.heard()) == 0 {
			return errors.New("it is not")
		}
		return nil
	})
	s.kill9(partControlPlane)
	v.say(`{"verdict": "pass"}`)
	s.start(partControlPlane)
	s.waitLive(t, app, 2)
	calls := v.heard()
	require.Greater(t, len(calls), 1)
	first, again := calls[0], calls[1]
	require.NoError(t, first.wrong)
	require.Equal(t, first, again)
}
