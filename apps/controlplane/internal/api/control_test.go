package api_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// saidTo gives a command to chat's rollout, and returns its effect or its error. The result of a command that changed
// nothing begins with "=".
func (h *harness) saidTo(word string) string {
	h.t.Helper()
	ctx, c := h.t.Context(), h.rollouts(h.deployer)
	type answer interface {
		GetEffect() string
		GetUnchanged() bool
	}
	var res answer
	var err error
	switch word {
	case "pause":
		res, err = c.PauseRollout(ctx, &windlassv1.PauseRolloutRequest{App: "chat"})
	case "resume":
		res, err = c.ResumeRollout(ctx, &windlassv1.ResumeRolloutRequest{App: "chat"})
	case "retry":
		res, err = c.RetryRollout(ctx, &windlassv1.RetryRolloutRequest{App: "chat"})
	case "promote", "promote --full":
		res, err = c.Promote(ctx, &windlassv1.PromoteRequest{App: "chat", Full: word != "promote"})
	case "skip-bake":
		res, err = c.SkipBake(ctx, &windlassv1.SkipBakeRequest{App: "chat"})
	case "approve":
		return h.saidOtherwise(func(ctx context.Context) (bool, error) {
			res, err := h.rollouts(h.owner).Approve(ctx, &windlassv1.ApproveRequest{App: "chat"})
			return res.GetUnchanged(), err
		})
	case "abort":
		return h.saidOtherwise(func(ctx context.Context) (bool, error) {
			res, err := h.apps(h.deployer).Cancel(ctx, &windlassv1.CancelRequest{App: "chat"})
			return res.GetUnchanged(), err
		})
	}
	if err != nil {
		return "refused: " + err.Error() + " / " + rpc.DetailOf(err).GetFix()
	}
	if res.GetUnchanged() {
		return "= " + res.GetEffect()
	}
	return res.GetEffect()
}

// saidOtherwise is saidTo for a command whose answer has no text.
func (h *harness) saidOtherwise(say func(context.Context) (bool, error)) string {
	switch unchanged, err := say(h.t.Context()); {
	case err != nil:
		return "refused: " + err.Error() + " / " + rpc.DetailOf(err).GetFix()
	case unchanged:
		return "="
	}
	return "done"
}

func TestControl_EachCommandReportsItsEffectInEachState(t *testing.T) {
	const (
		gate       = "step 1 of 1 of wave 1 in us-east-1 needs approval by a key of role owner"
		paused     = "role-2 has paused it: nothing moves until it is resumed"
		notPaused  = "= it is not paused: nothing to resume"
		nothing    = "= no region of it failed: nothing to retry"
		noStep     = "refused: failed_precondition: no region of the rollout waits at a step now"
		noGate     = "refused: failed_precondition: the rollout waits for no approval now"
		noBake     = "refused: failed_precondition: no wave of the rollout is baking now"
		needsGate  = "refused: failed_precondition: step 1 of the rollout needs approval by a key of role owner: a promotion is not enough / Approve it with"
		cancelled  = "refused: failed_precondition: the rollout is being cancelled / Wait until it is back"
		goesOn     = "regions that wait go on, in wave 1"
		full       = "no pause of a step, analysis or bake time holds it any more"
		nothingNow = "nothing starts or stops until it is resumed"
	)
	step := func(s *windlassv1.CanaryStep) *windlassv1.RolloutPolicy {
		s.Weight = 20
		return canary(s)
	}
	timed, manual := step(&windlassv1.CanaryStep{Pause: "1h"}), step(&windlassv1.CanaryStep{Pause: "manual"})
	approval := step(&windlassv1.CanaryStep{Approval: &windlassv1.Approval{}})
	bake := &windlassv1.RolloutPolicy{MaxSurge: "1", Waves: []*windlassv1.Wave{{Regions: []string{"eu-west-1"}, BakeTime: durationpb.New(time.Hour)}, {}}}
	// Commands that change the state come last, so that the commands before them see the same state.
	for name, tc := range map[string]struct {
		policy *windlassv1.RolloutPolicy
		words  [][2]string
	}{
		"a step that ends by itself": {timed, [][2]string{
			{"resume", notPaused}, {"retry", nothing}, {"approve", noGate}, {"skip-bake", noBake}, {"promote", goesOn}, {"promote", "= the same command was given before"},
		}},
		"a manual step": {manual, [][2]string{
			{"resume", notPaused}, {"retry", nothing}, {"approve", noGate}, {"skip-bake", noBake}, {"promote --full", full + "; " + goesOn}, {"promote --full", "= the same command was given before"},
		}},
		"a manual step, paused": {manual, [][2]string{
			{"pause", nothingNow},
			{"pause", "= role-2 has paused it already"},
			{"retry", nothing + "; " + paused},
			{"approve", noGate},
			{"promote", goesOn + "; " + paused},
			{"promote", "= the same command was given before; " + paused},
			{"promote --full", full + "; " + paused},
			{"resume", "role-2 had paused it for"},
			{"resume", notPaused},
		}},
		"an approval": {approval, [][2]string{
			{"resume", notPaused + "; " + gate},
			{"retry", nothing + "; " + gate},
			{"promote", needsGate},
			{"skip-bake", noBake},
			{"promote --full", full + "; " + gate},
			{"promote --full", "= the same command was given before; " + gate},
			{"promote", needsGate},
			{"approve", "done"},
			{"approve", "="},
		}},
		"an approval, paused": {approval, [][2]string{
			{"pause", nothingNow},
			{"retry", nothing + "; " + paused + "; " + gate},
			{"promote", needsGate},
			{"promote --full", full + "; " + paused + "; " + gate},
			{"resume", "role-2 had paused it for"},
		}},
		"a bake": {bake, [][2]string{
			{"resume", notPaused}, {"retry", nothing}, {"promote", noStep}, {"approve", noGate}, {"skip-bake", "wave 1 bakes no longer"}, {"skip-bake", "= its bake is skipped already"},
		}},
		"a bake, paused": {bake, [][2]string{
			{"pause", nothingNow}, {"promote", noStep}, {"skip-bake", "wave 1 bakes no longer; " + paused},
		}},
		"aborted at an approval": {approval, [][2]string{
			{"abort", "done"},
			{"abort", "="},
			{"pause", cancelled},
			{"resume", cancelled},
			{"retry", cancelled},
			{"promote", cancelled},
			{"promote --full", cancelled},
			{"approve", cancelled},
			{"skip-bake", cancelled},
		}},
		"aborted in a bake": {bake, [][2]string{
			{"abort", "done"}, {"promote", cancelled}, {"skip-bake", cancelled}, {"approve", cancelled},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			w := setup(t)
			for _, arg := range []string{"a", "b"} {
				_, err := w.apps(w.owner).Deploy(t.Context(), &windlassv1.DeployRequest{App: "chat", Spec: echo(args(arg)), Rollout: tc.policy})
				require.NoError(t, err)
				w.settle("chat")
			}
			for _, word := range tc.words {
				said := w.saidTo(word[0])
				require.Equal(t, word[1], said[:min(len(said), len(word[1]))], "%s: %s", word[0], said)
			}
		})
	}
	t.Run("no rollout", func(t *testing.T) {
		w := setup(t)
		w.deploy("chat", args("a"))
		w.settle("chat")
		for _, word := range []string{"pause", "resume", "retry", "promote", "promote --full", "approve", "skip-bake", "abort"} {
			require.Contains(t, w.saidTo(word), "refused: failed_precondition: app chat has no rollout in flight")
		}
	})
}

// Two people may look at the same app: a command that names a rollout must not reach the rollout after it.
func TestControl_RefusesAnotherRolloutThanTheOneNamed(t *testing.T) {
	h := setup(t)
	manual := canary(&windlassv1.CanaryStep{Weight: 20, Pause: "manual"})
	h.rolledOut(nil, "a")
	_, err := h.deployBy("chat", manual, args("b"))
	require.NoError(t, err)
	h.settle("chat")
	gone := "ro_another"
	ctx, ro, apps := t.Context(), h.rollouts(h.owner), h.apps(h.owner)
	for name, call := range map[string]func(id string) error{
		"pause": func(id string) error {
			_, err := ro.PauseRollout(ctx, &windlassv1.PauseRolloutRequest{App: "chat", RolloutId: id})
			return err
		},
		"resume": func(id string) error {
			_, err := ro.ResumeRollout(ctx, &windlassv1.ResumeRolloutRequest{App: "chat", RolloutId: id})
			return err
		},
		"retry": func(id string) error {
			_, err := ro.RetryRollout(ctx, &windlassv1.RetryRolloutRequest{App: "chat", RolloutId: id})
			return err
		},
		"promote": func(id string) error {
			_, err := ro.Promote(ctx, &windlassv1.PromoteRequest{App: "chat", RolloutId: id})
			return err
		},
		"bake": func(id string) error {
			_, err := ro.SkipBake(ctx, &windlassv1.SkipBakeRequest{App: "chat", RolloutId: id})
			return err
		},
		"approve": func(id string) error {
			_, err := ro.Approve(ctx, &windlassv1.ApproveRequest{App: "chat", RolloutId: id})
			return err
		},
		"cancel": func(id string) error {
			_, err := apps.Cancel(ctx, &windlassv1.CancelRequest{App: "chat", RolloutId: id})
			return err
		},
	} {
		err := call(gone)
		require.Equal(t, []any{windlassv1.ErrorReason_ERROR_REASON_CONFLICT, "rolloutId"}, []any{rpc.ReasonOf(err), rpc.DetailOf(err).GetField()}, "%s: %v", name, err)
	}
	app, err := h.apps(h.owner).GetApp(ctx, &windlassv1.GetAppRequest{App: "chat"})
	require.NoError(t, err)
	res, err := ro.Promote(ctx, &windlassv1.PromoteRequest{App: "chat", RolloutId: app.GetApp().GetRolloutId()})
	require.NoError(t, err)
	require.False(t, res.GetUnchanged())
}

func TestRollback_RefusesAnotherLiveVersionThanTheOneNamed(t *testing.T) {
	h := setup(t)
	h.rolledOut(nil, "a", "b")
	apps := h.apps(h.owner)
	refused := func(req *windlassv1.RollbackRequest, text string) {
		t.Helper()
		req.App = "chat"
		_, err := apps.Rollback(t.Context(), req)
		require.Equal(t, []any{windlassv1.ErrorReason_ERROR_REASON_CONFLICT, "liveVersion"}, []any{rpc.ReasonOf(err), rpc.DetailOf(err).GetField()}, "%v", err)
		require.ErrorContains(t, err, text)
	}
	refused(&windlassv1.RollbackRequest{LiveVersion: 1}, "v2 is live")
	refused(&windlassv1.RollbackRequest{LiveVersion: 1, Version: 1}, "v2 is live")
	_, err := h.deployBy("chat", canary(&windlassv1.CanaryStep{Weight: 50, Pause: "manual"}), args("c"))
	require.NoError(t, err)
	h.settle("chat")
	refused(&windlassv1.RollbackRequest{LiveVersion: 2}, "a rollout is in flight")
	res := h.rollback(&windlassv1.RollbackRequest{LiveVersion: 2, Version: 1})
	require.Equal(t, int32(1), res.GetFromVersion())
}
