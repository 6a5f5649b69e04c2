package api_test

import (
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

const (
	hold       = windlassv1.Freeze_ON_START_HOLD
	refuse     = windlassv1.Freeze_ON_START_REFUSE
	isFrozen   = windlassv1.ErrorReason_ERROR_REASON_FROZEN
	validation = windlassv1.ErrorReason_ERROR_REASON_VALIDATION
)

// onBothStores runs the test on memory and on the real database.
func onBothStores(t *testing.T, test func(*testing.T, *harness)) {
	t.Helper()
	for name, open := range map[string]func(*testing.T) store.Store{"memory": newStore, "mariadb": newDatabase} {
		t.Run(name, func(t *testing.T) { test(t, setupOn(t, open(t))) })
	}
}

func (h *harness) freeze(name string, on windlassv1.Freeze_OnStart, edit ...func(*windlassv1.SetFreezeRequest)) *windlassv1.Freeze {
	h.t.Helper()
	req := &windlassv1.SetFreezeRequest{Name: name, Reason: "the quarter ends", OnStart: on}
	for _, f := range edit {
		f(req)
	}
	res, err := h.freezes(h.owner).SetFreeze(h.t.Context(), req)
	require.NoError(h.t, err)
	return res.GetFreeze()
}

func (h *harness) lift(name string) *windlassv1.LiftFreezeResponse {
	h.t.Helper()
	res, err := h.freezes(h.owner).LiftFreeze(h.t.Context(), &windlassv1.LiftFreezeRequest{Name: name})
	require.NoError(h.t, err)
	return res
}

// wakesDue returns the apps whose wake-up is due.
func (h *harness) wakesDue() (ids []string) {
	h.t.Helper()
	err := h.store.View(h.t.Context(), func(tx store.Tx) error {
		rows, err := tx.DueWakes(0, 0, 100)
		for _, r := range rows {
			ids = append(ids, r.AppID)
		}
		return err
	})
	require.NoError(h.t, err)
	return ids
}

func TestFreeze_RefusesOnlyStarts(t *testing.T) {
	onBothStores(t, func(t *testing.T, w *harness) {
		ctx, c := t.Context(), w.apps(w.deployer)
		secret := func(value string) error {
			_, err := w.environments(w.owner).SetSecret(ctx, &windlassv1.SetSecretRequest{
				Environment: "default/production", Name: "token", Value: value,
			})
			return err
		}
		require.NoError(t, secret("v"))
		withSecret := func(s *windlassv1.DeploymentSpec) {
			s.Secrets = []*windlassv1.SecretReference{{EnvName: "TOKEN", Secret: "token"}}
		}
		for _, arg := range []string{"a", "b"} {
			w.deploy("chat", args(arg), withSecret)
			w.settle("chat")
		}
		until := time.Now().Add(time.Hour).Truncate(time.Second)
		f := w.freeze("quarter", refuse, func(r *windlassv1.SetFreezeRequest) { r.Until = until.UnixMilli() })
		require.True(t, f.GetInForce())
		require.Equal(t, until.UnixMilli(), f.GetInForceUntil())
		before := w.dump()

		_, err := c.Deploy(ctx, &windlassv1.DeployRequest{App: "chat", Spec: echo(args("c"), withSecret)})
		refused(t, err, connect.CodeFailedPrecondition, isFrozen, "")
		for _, text := range []string{"app chat", "freeze quarter of the workspace", until.UTC().Format("2006-01-02 15:04:05 UTC"), "the quarter ends"} {
			require.ErrorContains(t, err, text)
		}
		require.Contains(t, detailOf(err).GetFix(), "--override-freeze")
		_, err = c.Deploy(ctx, &windlassv1.DeployRequest{App: "new", Spec: echo()})
		refused(t, err, connect.CodeFailedPrecondition, isFrozen, "")
		_, err = c.SetEnvironment(ctx, &windlassv1.SetEnvironmentRequest{App: "chat", Set: map[string]string{"A": "1"}})
		refused(t, err, connect.CodeFailedPrecondition, isFrozen, "")
		refused(t, secret("new"), connect.CodeFailedPrecondition, isFrozen, "")
		require.Equal(t, before, w.dump(), "a refusal leaves nothing")

		// Calls that start no rollout are not frozen, and rollbacks are not frozen.
		same, err := c.Deploy(ctx, &windlassv1.DeployRequest{App: "chat", Spec: echo(args("b"), withSecret)})
		require.NoError(t, err)
		require.True(t, same.GetUnchanged())
		_, err = c.Scale(ctx, &windlassv1.ScaleRequest{App: "chat", Replicas: 3})
		require.NoError(t, err)
		_, err = c.Rollback(ctx, &windlassv1.RollbackRequest{App: "chat"})
		require.NoError(t, err)
		require.Equal(t, int32(3), w.settle("chat").GetLiveVersion())
		_, err = w.apps(w.owner).DeleteApp(ctx, &windlassv1.DeleteAppRequest{App: "chat"})
		require.NoError(t, err)
		require.Nil(t, w.settle("chat"))
		_, err = w.environments(w.owner).SetSecret(ctx, &windlassv1.SetSecretRequest{Environment: "default/production", Name: "token", Value: "w"})
		require.NoError(t, err, "no frozen app uses the secret any more")
	})
}

func TestFreeze_HoldsARolloutUntilLifted(t *testing.T) {
	onBothStores(t, func(t *testing.T, w *harness) {
		ctx := t.Context()
		w.deploy("chat", args("a"))
		w.settle("chat")
		w.freeze("quarter", hold)
		res := w.deploy("chat", args("b"))
		require.Equal(t, "quarter", res.GetHold().GetFreeze())
		app := w.settle("chat")
		require.Equal(t, []int32{1, 2}, []int32{app.GetLiveVersion(), app.GetLatestVersion()})
		require.Equal(t, "v2 is held by freeze quarter of the workspace, until it is lifted: the quarter ends", app.GetMessage())
		got, err := w.rollouts(w.viewer).GetRollout(ctx, &windlassv1.GetRolloutRequest{Rollout: res.GetRolloutId()})
		require.NoError(t, err)
		r := got.GetRollout()
		require.Equal(t, []any{"quarter", "workspace", "the quarter ends", int64(0)},
			[]any{r.GetHold().GetFreeze(), r.GetHold().GetScope(), r.GetHold().GetReason(), r.GetHold().GetUntil()})
		require.NotZero(t, r.GetHold().GetSince())
		require.Zero(t, r.GetDeadline(), "no deadline runs")
		require.Empty(t, w.rowsOf("chat", 2))
		again := w.deploy("chat", args("b"))
		require.True(t, again.GetUnchanged())
		require.Equal(t, "quarter", again.GetHold().GetFreeze())

		w.freeze("audit", refuse, func(r *windlassv1.SetFreezeRequest) { r.App = "chat" })
		require.Equal(t, []string{app.GetId()}, w.lift("quarter").GetAppIds())
		require.Contains(t, w.wakesDue(), app.GetId(), "the transaction that lifts the freeze wakes the held app")
		require.Contains(t, w.settle("chat").GetMessage(), "held by freeze audit of the app", "another freeze still holds the rollout, even if that freeze refuses calls")
		w.lift("audit")
		require.Equal(t, int32(2), w.settle("chat").GetLiveVersion())
		require.Subset(t, w.said("chat"), []string{"RolloutHeld", "RolloutReleased"})
		got, err = w.rollouts(w.viewer).GetRollout(ctx, &windlassv1.GetRolloutRequest{Rollout: res.GetRolloutId()})
		require.NoError(t, err)
		require.Nil(t, got.GetRollout().GetHold())
	})
}

func TestFreeze_HeldRolloutIsAbortedOrReplaced(t *testing.T) {
	w := setup(t)
	ctx := t.Context()
	w.deploy("chat", args("a"))
	w.settle("chat")
	w.freeze("quarter", hold)
	w.deploy("chat", args("b"))
	w.settle("chat")
	w.deploy("chat", args("c"))
	require.Contains(t, w.settle("chat").GetMessage(), "v3 is held")
	_, err := w.apps(w.deployer).Cancel(ctx, &windlassv1.CancelRequest{App: "chat"})
	require.NoError(t, err)
	app := w.settle("chat")
	require.Empty(t, app.GetRolloutId())
	require.Equal(t, windlassv1.AppStatus_APP_STATUS_READY, app.GetStatus())
	require.Empty(t, w.lift("quarter").GetAppIds())
}

func TestFreeze_ReplacesNoRolloutThatHasBegun(t *testing.T) {
	w := rollingOut(t)
	w.freeze("quarter", hold)
	_, err := w.apps(w.deployer).Deploy(t.Context(), &windlassv1.DeployRequest{App: "chat", Spec: echo(args("c"))})
	refused(t, err, connect.CodeFailedPrecondition, isFrozen, "")
	require.ErrorContains(t, err, "v2 of app chat is in flight")
	_, err = w.rollouts(w.deployer).SkipBake(t.Context(), &windlassv1.SkipBakeRequest{App: "chat"})
	require.NoError(t, err)
	require.Equal(t, int32(2), w.settle("chat").GetLiveVersion(), "a rollout that has begun continues")
}

func TestFreeze_OverrideByAnOwnerIsAudited(t *testing.T) {
	w := setup(t)
	ctx := t.Context()
	w.freeze("quarter", refuse)
	deploy := func(key, arg string) error {
		_, err := w.apps(key).Deploy(ctx, &windlassv1.DeployRequest{App: "chat", Spec: echo(args(arg)), OverrideFreeze: "incident 4711"})
		return err
	}
	err := deploy(w.deployer, "a")
	refused(t, err, connect.CodePermissionDenied, isDenied, "")
	require.NoError(t, deploy(w.owner, "a"))
	require.Equal(t, int32(1), w.settle("chat").GetLiveVersion())
	history, err := w.history(w.viewer).ListHistory(ctx, &windlassv1.ListHistoryRequest{App: "chat"})
	require.NoError(t, err)
	var said string
	for _, h := range history.GetEntries() {
		if h.GetWhat() == "FreezeOverridden" {
			require.Equal(t, "owner", h.GetWho())
			said = h.GetWhy()
		}
	}
	require.Contains(t, said, "incident 4711; in spite of freeze quarter of the workspace")
	audit, err := w.history(w.owner).ListAudit(ctx, &windlassv1.ListAuditRequest{})
	require.NoError(t, err)
	kinds := map[string]string{}
	for _, a := range audit.GetEntries() {
		kinds[a.GetResourceKind()] = a.GetAfter()
	}
	require.Contains(t, kinds["freeze_override"], "incident 4711")
	require.Contains(t, kinds["freeze"], "the quarter ends")

	// An override also starts a rollout that is already held.
	w.freeze("quarter", hold)
	w.deploy("chat", args("b"))
	require.Contains(t, w.settle("chat").GetMessage(), "v2 is held")
	require.NoError(t, deploy(w.owner, "b"))
	require.Equal(t, int32(2), w.settle("chat").GetLiveVersion())
	require.Contains(t, w.said("chat"), "RolloutReleased")
}

func TestFreeze_CoversItsScopeInItsWorkspace(t *testing.T) {
	onBothStores(t, func(t *testing.T, w *harness) {
		ctx := t.Context()
		_, err := w.projects(w.owner).CreateProject(ctx, &windlassv1.CreateProjectRequest{Name: "lab"})
		require.NoError(t, err)
		w.deploy("chat", args("a"))
		w.freeze("lab", refuse, func(r *windlassv1.SetFreezeRequest) { r.Project = "lab" })
		f := w.freeze("chat", refuse, func(r *windlassv1.SetFreezeRequest) { r.App = "default/production/chat" })
		require.Equal(t, "default/production/chat", f.GetApp())
		_, err = w.apps(w.deployer).Deploy(ctx, &windlassv1.DeployRequest{App: "lab/production/one", Spec: echo()})
		refused(t, err, connect.CodeFailedPrecondition, isFrozen, "")
		require.ErrorContains(t, err, "freeze lab of the project")
		_, err = w.apps(w.deployer).Deploy(ctx, &windlassv1.DeployRequest{App: "chat", Spec: echo(args("b"))})
		require.ErrorContains(t, err, "freeze chat of the app")
		w.deploy("other")

		list, err := w.freezes(w.rival).ListFreezes(ctx, &windlassv1.ListFreezesRequest{})
		require.NoError(t, err)
		require.Empty(t, list.GetFreezes())
		_, err = w.freezes(w.rival).LiftFreeze(ctx, &windlassv1.LiftFreezeRequest{Name: "chat"})
		refused(t, err, connect.CodeNotFound, notFound, "name")

		// A freeze is deleted with its app or project.
		_, err = w.apps(w.owner).DeleteApp(ctx, &windlassv1.DeleteAppRequest{App: "chat"})
		require.NoError(t, err)
		_, err = w.projects(w.owner).DeleteProject(ctx, &windlassv1.DeleteProjectRequest{Project: "lab"})
		require.NoError(t, err)
		list, err = w.freezes(w.viewer).ListFreezes(ctx, &windlassv1.ListFreezesRequest{})
		require.NoError(t, err)
		require.Empty(t, list.GetFreezes())
	})
}

func TestFreeze_SetAgainIsTheSame(t *testing.T) {
	onBothStores(t, func(t *testing.T, w *harness) {
		ctx := t.Context()
		first := w.freeze("quarter", refuse)
		before := w.dump()
		require.Equal(t, first.String(), w.freeze("quarter", refuse).String())
		require.Equal(t, before, w.dump(), "setting the same freeze again changes nothing")
		later := w.freeze("quarter", hold, func(r *windlassv1.SetFreezeRequest) {
			r.Weekly, r.TimeZone = []*windlassv1.WeeklyWindow{{Start: "Fri 16:00", End: "Mon 08:00"}}, "Europe/London"
		})
		require.Equal(t, []any{first.GetId(), first.GetFrom(), hold}, []any{later.GetId(), later.GetFrom(), later.GetOnStart()})
		list, err := w.freezes(w.viewer).ListFreezes(ctx, &windlassv1.ListFreezesRequest{})
		require.NoError(t, err)
		require.Len(t, list.GetFreezes(), 1)
		require.Equal(t, "Europe/London", list.GetFreezes()[0].GetTimeZone())
		require.Equal(t, "Fri 16:00", list.GetFreezes()[0].GetWeekly()[0].GetStart())
		w.freeze("again", hold)
		page, err := w.freezes(w.viewer).ListFreezes(ctx, &windlassv1.ListFreezesRequest{Page: &windlassv1.PageRequest{Size: 1}})
		require.NoError(t, err)
		require.Equal(t, "again", page.GetFreezes()[0].GetName())
		page, err = w.freezes(w.viewer).ListFreezes(ctx, &windlassv1.ListFreezesRequest{Page: &windlassv1.PageRequest{Size: 1, Token: page.GetPage().GetNext()}})
		require.NoError(t, err)
		require.Equal(t, "quarter", page.GetFreezes()[0].GetName())
		w.lift("quarter")
		_, err = w.freezes(w.owner).LiftFreeze(ctx, &windlassv1.LiftFreezeRequest{Name: "quarter"})
		refused(t, err, connect.CodeNotFound, notFound, "name")
	})
}

func TestFreezes_NumberIsLimited(t *testing.T) {
	w := setup(t)
	long := time.Now().Add(-60 * 24 * time.Hour).UnixMilli()
	w.update(func(tx store.Tx) error {
		for i := range model.MaxFreezes {
			f := model.Freeze{WorkspaceID: w.workspace, Name: "f" + string(rune('a'+i/26)) + string(rune('a'+i%26)), Reason: "x"}
			if i == 0 {
				f.Until = long
			}
			if err := tx.PutFreeze(f); err != nil {
				return err
			}
		}
		return nil
	})
	w.freeze("one-more", refuse) // replaces a freeze that ended long ago
	_, err := w.freezes(w.owner).SetFreeze(t.Context(), &windlassv1.SetFreezeRequest{Name: "too-many", Reason: "x"})
	refused(t, err, connect.CodeResourceExhausted, windlassv1.ErrorReason_ERROR_REASON_LIMIT_EXCEEDED, "name")
	w.freeze("one-more", hold)
}

func TestFreeze_InvalidFreezeNamesItsField(t *testing.T) {
	w := setup(t)
	w.deploy("chat")
	now := time.Now().UnixMilli()
	window := func(start, end string) []*windlassv1.WeeklyWindow {
		return []*windlassv1.WeeklyWindow{{Start: start, End: end}}
	}
	for name, c := range map[string]struct {
		edit  func(*windlassv1.SetFreezeRequest)
		field string
	}{
		"no name":                {func(r *windlassv1.SetFreezeRequest) { r.Name = "" }, "name"},
		"no reason":              {func(r *windlassv1.SetFreezeRequest) { r.Reason = "" }, "reason"},
		"an unknown onStart":     {func(r *windlassv1.SetFreezeRequest) { r.OnStart = 9 }, "onStart"},
		"a project and an app":   {func(r *windlassv1.SetFreezeRequest) { r.Project, r.App = "default", "chat" }, "app"},
		"over":                   {func(r *windlassv1.SetFreezeRequest) { r.Until = now - 1 }, "until"},
		"until before from":      {func(r *windlassv1.SetFreezeRequest) { r.From, r.Until = now+2_000_000, now+1_000_000 }, "until"},
		"a zone without windows": {func(r *windlassv1.SetFreezeRequest) { r.TimeZone = "UTC" }, "timeZone"},
		"windows without a zone": {func(r *windlassv1.SetFreezeRequest) { r.Weekly = window("Fri 16:00", "Mon 08:00") }, "timeZone"},
		"no such zone": {func(r *windlassv1.SetFreezeRequest) {
			r.Weekly, r.TimeZone = window("Fri 16:00", "Mon 08:00"), "Europe/Atlantis"
		}, "timeZone"},
		"no such time": {func(r *windlassv1.SetFreezeRequest) { r.Weekly, r.TimeZone = window("Fri 25:00", "Mon 08:00"), "UTC" }, "weekly[0].start"},
		"half a week":  {func(r *windlassv1.SetFreezeRequest) { r.Weekly, r.TimeZone = window("Fri 16:00", "08:00"), "UTC" }, "weekly[0].start"},
		"no gap":       {func(r *windlassv1.SetFreezeRequest) { r.Weekly, r.TimeZone = window("00:00", "00:00"), "UTC" }, "weekly"},
	} {
		t.Run(name, func(t *testing.T) {
			req := &windlassv1.SetFreezeRequest{Name: "f", Reason: "x"}
			c.edit(req)
			_, err := w.freezes(w.owner).SetFreeze(t.Context(), req)
			refused(t, err, connect.CodeInvalidArgument, validation, c.field)
		})
	}
	for field, req := range map[string]*windlassv1.SetFreezeRequest{
		"project": {Name: "f", Reason: "x", Project: "nowhere"}, "app": {Name: "f", Reason: "x", App: "missing"},
	} {
		_, err := w.freezes(w.owner).SetFreeze(t.Context(), req)
		refused(t, err, connect.CodeNotFound, notFound, field)
	}
}

func TestFreeze_IsShownByAPlan(t *testing.T) {
	w := setup(t)
	w.connected(8)
	w.deploy("chat", args("a"))
	w.settle("chat")
	w.freeze("quarter", refuse)
	p := w.planned("chat", nil, args("b"))
	require.False(t, p.GetWouldRun())
	require.Equal(t, []string{"FROZEN "}, reasons(p))
	require.Contains(t, p.GetFindings()[0].GetMessage(), "freeze quarter of the workspace")
	require.NotEmpty(t, p.GetSteps(), "the plan still has its steps")
	w.freeze("quarter", hold)
	p = w.planned("chat", nil, args("b"))
	require.True(t, p.GetWouldRun())
	require.Contains(t, p.GetFindings()[0].GetMessage(), "it would be held by freeze quarter")
	require.Equal(t, isFrozen, p.GetFindings()[0].GetReason())
}
