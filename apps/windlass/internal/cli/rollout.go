package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-run/windlass/pkg/plural"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func (a *app) rolloutCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "rollout",
		Short: "Follow and control the rollout of a new version",
		Long: `A new version moves in waves of regions, as the rollout block of the app's file says,
or region by region. These commands show where the rollout is, pause and resume it,
let it continue where it waits, and abort it. A command may be repeated.`,
	}
	abort := a.cancelCommand()
	abort.Use, abort.Short = "abort APP", "Bring every region back to the version that is live"
	return groupCommands(c, a.rolloutStatusCommand(), abort,
		a.instructionCommand("pause APP", "Pause the rollout: it starts and stops nothing", "paused; `windlass rollout resume` goes on",
			func(ctx context.Context, i instruction) (effect, error) {
				return a.clients.rollouts.PauseRollout(ctx, &windlassv1.PauseRolloutRequest{Mutation: newMutation(), App: i.path, RolloutId: i.rollout, Why: i.why})
			}),
		a.instructionCommand("resume APP", "Resume a paused rollout", "goes on",
			func(ctx context.Context, i instruction) (effect, error) {
				return a.clients.rollouts.ResumeRollout(ctx, &windlassv1.ResumeRolloutRequest{Mutation: newMutation(), App: i.path, RolloutId: i.rollout, Why: i.why})
			}),
		a.instructionCommand("retry APP", "Retry the regions that failed", "tries again",
			func(ctx context.Context, i instruction) (effect, error) {
				return a.clients.rollouts.RetryRollout(ctx, &windlassv1.RetryRolloutRequest{Mutation: newMutation(), App: i.path, RolloutId: i.rollout, Why: i.why})
			}),
		a.promoteCommand(),
		a.approveCommand(),
		a.instructionCommand("skip-bake APP", "End the bake time of the wave that is baking", "bakes no longer",
			func(ctx context.Context, i instruction) (effect, error) {
				return a.clients.rollouts.SkipBake(ctx, &windlassv1.SkipBakeRequest{Mutation: newMutation(), App: i.path, RolloutId: i.rollout, Why: i.why})
			}),
	)
}

func (a *app) promoteCommand() *cobra.Command {
	var full bool
	c := a.instructionCommand("promote APP", "Accept the new version where it waits, and go on", "promoted",
		func(ctx context.Context, i instruction) (effect, error) {
			return a.clients.rollouts.Promote(ctx, &windlassv1.PromoteRequest{Mutation: newMutation(), App: i.path, RolloutId: i.rollout, Why: i.why, Full: full})
		})
	c.Long = `Promote lets the regions that wait at a step continue, unless the step waits for an
approval. If a failed analysis paused the rollout, promote accepts the failure.

With --full the rollout skips all remaining steps, pauses, analysis and bake times, also in
regions whose turn has not come yet. It never skips an approval.`
	c.Flags().BoolVar(&full, "full", false, "skip everything that is left, except approvals")
	return c
}

func (a *app) approveCommand() *cobra.Command {
	var comment, rollout string
	c := &cobra.Command{
		Use: "approve APP", Short: "Approve the rollout at the gates where it waits, with the role of the key", Args: cobra.ExactArgs(1),
		Example: `  windlass rollout approve echo --comment "p95 is as before"`,
		RunE: a.run(func(ctx context.Context, args []string) error {
			resp, err := a.clients.rollouts.Approve(ctx, &windlassv1.ApproveRequest{Mutation: newMutation(), App: a.appPath(args[0]), RolloutId: rollout, Comment: comment})
			if err != nil {
				return err
			}
			text := "approved"
			if resp.Unchanged {
				text = "has this key's approval already"
			}
			if len(resp.Missing) > 0 {
				text += "; still missing: " + strings.Join(resp.Missing, "; ")
			}
			return a.showDone(resp, "%s: %s", args[0], text)
		}),
	}
	c.Flags().StringVarP(&comment, "comment", "m", "", "why, for the history")
	addIfRollout(c, &rollout)
	return c
}

// effect is a response that describes what the call did.
type effect interface {
	proto.Message
	GetEffect() string
}

// instruction is a person's instruction to a rollout. rollout is the id of the only rollout that it is for; empty: any.
type instruction struct{ path, rollout, why string }

// instructionCommand returns a command that sends one instruction to the rollout in flight. done is the text
// for a control plane that does not describe the effect.
func (a *app) instructionCommand(use, short, done string, say func(ctx context.Context, i instruction) (effect, error)) *cobra.Command {
	var i instruction
	c := &cobra.Command{
		Use: use, Short: short, Args: cobra.ExactArgs(1),
		RunE: a.run(func(ctx context.Context, args []string) error {
			i.path = a.appPath(args[0])
			resp, err := say(ctx, i)
			if err != nil {
				return err
			}
			return a.showDone(resp, "%s: %s", args[0], cmp.Or(resp.GetEffect(), done))
		}),
	}
	c.Flags().StringVarP(&i.why, "message", "m", "", "why, for the history")
	addIfRollout(c, &i.rollout)
	return c
}

// addIfRollout adds the flag that limits a command to one rollout.
func addIfRollout(c *cobra.Command, id *string) {
	c.Flags().StringVar(id, "if-rollout", "", "refuse the command unless the rollout with this id is in flight. Default: no check")
}

func (a *app) rolloutStatusCommand() *cobra.Command {
	var watch bool
	c := &cobra.Command{
		Use:   "status APP",
		Short: "Show where the rollout is, wave by wave and region by region",
		Long: `Status shows the rollout in flight, or the last one. With --watch, it shows changes
until the rollout is over, also while the rollout waits for people. The exit code is then 0
if the rollout succeeded, 1 if it failed or was aborted, 4 if it was superseded, and 6 if a
failure paused it. ` + exitCodesText,
		Example: "  windlass rollout status echo --watch",
		Args:    cobra.ExactArgs(1),
		RunE: a.run(func(ctx context.Context, args []string) error {
			path := a.appPath(args[0])
			if !watch {
				r, err := a.getState(ctx, path, "")
				if err != nil {
					return err
				}
				return a.showRollout(r)
			}
			return a.watchRollout(ctx, path)
		}),
	}
	c.Flags().BoolVarP(&watch, "watch", "w", false, "show the state again after each change, until the rollout is over")
	return c
}

// watchRollout shows the rollout that is in flight when it is called, until the rollout is over.
func (a *app) watchRollout(ctx context.Context, path string) error {
	first, err := a.getState(ctx, path, "")
	if err != nil {
		return err
	}
	id := first.Rollout.GetId()
	var end verdict
	err = a.followApp(ctx, path, id, forever, func(r *windlassv1.WatchAppResponse) (bool, error) {
		if ro := rolloutWithID(r, id); ro != nil {
			r.Rollout = ro
		}
		end = startedWork{rolloutID: id}.verdictOf(r, untilReady)
		if id == "" {
			end.over = true
		}
		a.clearScreen()
		return end.over, a.showRollout(r)
	})
	return errors.Join(withoutMessage(err), end.errorOf())
}

func (a *app) showRollout(r *windlassv1.WatchAppResponse) error {
	if r.Rollout == nil {
		return &ExitError{Code: 1, Message: r.App.GetName() + " has had no rollout yet"}
	}
	return a.showMessage(r.Rollout, func(w *tabwriter.Writer) { rolloutTable(w, r) })
}

// rolloutTable prints the state of a rollout.
func rolloutTable(w *tabwriter.Writer, r *windlassv1.WatchAppResponse) {
	ro := r.Rollout
	writeRow(w, "Rollout:", fmt.Sprintf("%s, %s -> %s, by %s %s ago", r.App.GetName(), versionText(ro.FromVersion), versionText(ro.Version), ro.CreatedBy, ageText(ro.CreatedAt)))
	writeRow(w, "Status:", rolloutState(r))
	p := ro.Progress
	if p == nil {
		writeRow(w, "Policy:", "none: a first version goes to all regions at once (`windlass status` shows them)")
		return
	}
	writeRow(w, "Policy:", policyText(p.Policy))
	previewRows(w, ro)
	if len(p.Waves) == 0 {
		return
	}
	writeRow(w)
	others := hasOthers(p)
	writeRow(w, withOthers(others, "OTHERS", "WAVE", "REGION", "STATE", versionText(ro.FromVersion), versionText(ro.Version), "WANTED", "TRAFFIC", "SINCE", "WHY")...)
	var cut cutTexts
	for i, wave := range p.Waves {
		name := fmt.Sprintf("%d", i+1)
		if wave.Name != "" && wave.Name != name {
			name += " " + wave.Name
		}
		for j, g := range wave.Regions {
			if j > 0 {
				name = ""
			}
			writeRow(w, withOthers(others, othersText(r, g), name, g.Region, regionState(wave, g), replicasText(r, g, g.Old), replicasText(r, g, g.New), wantedText(r, g),
				fmt.Sprintf("%d/%d", g.GetOld().GetWeight(), g.GetNew().GetWeight()), ageText(g.Since), firstLine(reasonText(g.Reason, g.Message)))...)
			cut.add(g.Region, g.Reason, g.Message)
		}
	}
	for _, wave := range p.Behind {
		for _, g := range wave.Regions {
			writeRow(w, withOthers(others, othersText(r, g), "behind", g.Region, regionState(wave, g), versionReplicasText(r, g, g.Old), versionReplicasText(r, g, g.New), wantedText(r, g),
				fmt.Sprintf("%d/%d", g.GetOld().GetWeight(), g.GetNew().GetWeight()), ageText(g.Since), firstLine(reasonText(g.Reason, g.Message)))...)
			cut.add(g.Region, g.Reason, g.Message)
		}
	}
	checksTable(w, p)
	cut.add("Rollout of "+versionText(ro.Version), ro.Reason, ro.Message)
	cut.print(w)
}

// hasOthers reports whether any region has versions other than the rollout's two.
func hasOthers(p *windlassv1.RolloutProgress) bool {
	return slices.ContainsFunc(slices.Concat(p.GetWaves(), p.GetBehind()), func(w *windlassv1.WaveProgress) bool {
		return slices.ContainsFunc(w.GetRegions(), func(g *windlassv1.RegionProgress) bool { return len(g.GetOthers()) > 0 })
	})
}

// withOthers inserts the cell about other versions after the cell of the traffic, if others is set.
func withOthers(others bool, cell any, cells ...any) []any {
	const traffic = 6
	if !others {
		return cells
	}
	return slices.Insert(cells, traffic+1, cell)
}

// othersText lists the versions of earlier rollouts that still have replicas or traffic: "v2 1/1 25%".
func othersText(r *windlassv1.WatchAppResponse, g *windlassv1.RegionProgress) string {
	var parts []string
	for _, v := range g.GetOthers() {
		parts = append(parts, fmt.Sprintf("%s %d%%", versionReplicasText(r, g, v), v.GetWeight()))
	}
	return cmp.Or(strings.Join(parts, ", "), "-")
}

// previewRows prints the URLs at which the new version can be tried before it is live.
func previewRows(w *tabwriter.Writer, ro *windlassv1.Rollout) {
	const most = 3
	for i, url := range ro.PreviewUrls {
		label := ""
		if i == 0 {
			label = "Preview:"
		}
		if i == most {
			writeRow(w, label, fmt.Sprintf("and %d more: -o json", len(ro.PreviewUrls)-most))
			return
		}
		writeRow(w, label, url)
	}
}

func rolloutState(r *windlassv1.WatchAppResponse) string {
	ro := r.Rollout
	text := enumText(ro.Status, "ROLLOUT_STATUS_")
	why := firstLine(reasonText(ro.Reason, ro.Message))
	switch p := ro.Progress; {
	case ro.FinishedAt != 0:
		text += " after " + durationText(time.Duration(ro.FinishedAt-ro.CreatedAt)*time.Millisecond)
		if len(p.GetBehind()) > 0 && r.App.GetMessage() != "" {
			why = firstLine(r.App.Message)
		}
		if p.GetRetainedUntil() != 0 {
			why = fmt.Sprintf("%s is retained for %s: windlass rollback %s", versionText(ro.FromVersion), durationText(time.Until(time.UnixMilli(p.RetainedUntil))), r.App.GetName())
		}
	case ro.Hold != nil:
		text, why = holdText(ro.Hold), ""
	case ro.GetStartApproval().GetMissing() != "":
		text, why = startText(r.App, ro), ""
	case p.GetGoingBack():
		text = "going back to " + versionText(ro.FromVersion)
	case p.GetPaused():
		text = "paused by " + p.PausedBy + " " + ageText(p.PausedAt) + " ago"
		why = p.PausedWhy
	case heldBy(p) != "":
		text = "held: " + heldBy(p)
		why = ""
	case gateWaitedAt(r.App, p, time.Now()) != "":
		text, why = gateWaitedAt(r.App, p, time.Now()), ""
	case r.App.GetMessage() != "":
		why = firstLine(r.App.Message)
	}
	if why != "" {
		text += ": " + why
	}
	return text
}

// approvalMissing describes the approvals that a rollout needs when it waits for nothing else. It returns ""
// if none are missing.
func approvalMissing(p *windlassv1.RolloutProgress, now time.Time) string {
	at := now.UnixMilli()
	for _, w := range p.GetWaves() {
		if missing := w.GetApproval().GetMissing(); missing != "" && at >= w.BakingUntil {
			return missing
		}
		for _, g := range w.Regions {
			if missing := g.GetApproval().GetMissing(); missing != "" && at >= g.StepUntil {
				return missing
			}
		}
	}
	return ""
}

// approvalText describes the gate of a policy.
func approvalText(gate *windlassv1.Approval) string {
	if gate == nil {
		return ""
	}
	text := " and approval by " + enumText(gate.Role, "ROLE_")
	if gate.Count > 1 {
		text = fmt.Sprintf(" and approval by %d of role %s", gate.Count, enumText(gate.Role, "ROLE_"))
	}
	if gate.NotDeployer {
		text += ", not who deployed"
	}
	return text
}

func waitsForPromotion(p *windlassv1.RolloutProgress) bool {
	for _, w := range p.GetWaves() {
		for _, g := range w.Regions {
			if g.WaitsForPromotion {
				return true
			}
		}
	}
	return false
}

func policyText(p *windlassv1.RolloutPolicy) string {
	parts := []string{enumText(p.GetStrategy(), "STRATEGY_")}
	for i, s := range p.GetSteps() {
		amount := fmt.Sprintf("%d%%", s.Weight)
		if s.Weight == 0 {
			amount = plural.Count(s.Replicas, "replica")
		}
		parts = append(parts, fmt.Sprintf("step %d: %s", i+1, strings.TrimSpace(amount+" "+s.Pause)+approvalText(s.Approval)))
	}
	parts = append(parts, strategyFields(p)...)
	for i, v := range p.GetWaves() {
		if v.Approval != nil {
			parts = append(parts, fmt.Sprintf("end of wave %s:%s", cmp.Or(v.Name, fmt.Sprint(i+1)), strings.TrimPrefix(approvalText(v.Approval), " and")))
		}
	}
	for _, c := range p.GetAnalysis() {
		parts = append(parts, "check "+c.Name)
	}
	if wait := p.GetWaitForCapacity().AsDuration(); wait > 0 {
		parts = append(parts, "waits for room for "+durationText(wait)+" at most")
	}
	return strings.Join(append(parts, limitsText(p)...), ", ")
}

// strategyFields describes the fields that only some strategies have. A field that a policy leaves out has the
// default of the strategy.
func strategyFields(p *windlassv1.RolloutPolicy) (parts []string) {
	surge, unavailable := p.GetMaxSurge(), p.GetMaxUnavailable()
	green := false
	switch p.GetStrategy() { //nolint:exhaustive // others have no defaults
	case windlassv1.RolloutPolicy_STRATEGY_ROLLING, windlassv1.RolloutPolicy_STRATEGY_CANARY:
		surge, unavailable = cmp.Or(surge, "25%"), cmp.Or(unavailable, "0")
	case windlassv1.RolloutPolicy_STRATEGY_IN_PLACE:
		unavailable = cmp.Or(unavailable, "1")
	case windlassv1.RolloutPolicy_STRATEGY_BLUE_GREEN:
		green = true
	}
	if surge != "" {
		parts = append(parts, "max surge "+surge)
	}
	if unavailable != "" {
		parts = append(parts, "max unavailable "+unavailable)
	}
	if green || p.GetInitialWeight() != 0 {
		parts = append(parts, fmt.Sprintf("initial weight %d%%", p.GetInitialWeight()))
	}
	if green || p.GetPromotion() != "" || p.GetApproval() != nil {
		parts = append(parts, "promotion "+cmp.Or(p.GetPromotion(), "auto")+approvalText(p.GetApproval()))
	}
	if green || p.GetRetain() != nil {
		parts = append(parts, "retain "+durationText(p.GetRetain().AsDuration()))
	}
	return parts
}

// limitsText describes the automatic rollback and the deadlines that a policy sets.
func limitsText(p *windlassv1.RolloutPolicy) (parts []string) {
	auto := p.GetAutoRollback()
	switch {
	case auto != nil && auto.Enabled != nil && !auto.GetEnabled():
		parts = append(parts, "auto rollback off")
	case len(auto.GetConditions()) > 0:
		var names []string
		for _, on := range auto.GetConditions() {
			names = append(names, enumText(on, "CONDITION_"))
		}
		parts = append(parts, "auto rollback only on "+strings.Join(names, " or "))
	}
	if text := auto.GetFailedInstances(); text != "" {
		parts = append(parts, "a region fails after "+text+" failed instances")
	}
	if text := auto.GetUnhealthy(); text != "" {
		lasts := time.Minute
		if auto.GetUnhealthyFor() != nil {
			lasts = auto.GetUnhealthyFor().AsDuration()
		}
		parts = append(parts, fmt.Sprintf("or if %s of the replicas that were ready are not for %s", text, durationText(lasts)))
	}
	d := p.GetDeadlines()
	for _, limit := range []struct {
		name string
		of   *durationpb.Duration
	}{{"progress", d.GetProgress()}, {"unschedulable", d.GetUnschedulable()}, {"image", d.GetImage()}, {"crash", d.GetCrash()}} {
		if limit.of != nil {
			parts = append(parts, "deadline "+limit.name+" "+durationText(limit.of.AsDuration()))
		}
	}
	return parts
}

// replicasText returns the replicas that are ready, the replicas that the region should run and, if there are any,
// the outdated replicas that still serve. Of a pool it returns the instances of each role, and of groups both.
func replicasText(r *windlassv1.WatchAppResponse, g *windlassv1.RegionProgress, v *windlassv1.VersionProgress) string {
	if v.GetReplicas() == 0 && v.GetReady() == 0 {
		return "-"
	}
	text, percent := fmt.Sprintf("%d/%d", v.Ready, v.Replicas), ""
	if roles := poolRoles(r, v.GetVersion(), g.GetRegion()); len(roles) > 0 {
		text, percent = rolesText(roles), "%"
	} else if roles := rolesOf(r, v.GetVersion(), g.GetRegion()); len(roles) > 0 {
		text += ": " + rolesText(roles)
	}
	if v.Outdated > 0 {
		text += fmt.Sprintf(" (%d%s old)", v.Outdated, percent)
	}
	return text
}

// wantedText returns the replicas that the region should run of both versions together, with % for a pool.
func wantedText(r *windlassv1.WatchAppResponse, g *windlassv1.RegionProgress) string {
	for _, d := range r.GetDeployments() {
		if v := d.GetVersion(); isPooled(d) && (v == g.GetOld().GetVersion() || v == g.GetNew().GetVersion()) {
			return fmt.Sprintf("%d%%", g.GetReplicas())
		}
	}
	return fmt.Sprint(g.GetReplicas())
}

// versionReplicasText returns the counts with the version, for a region that has versions of its own.
func versionReplicasText(r *windlassv1.WatchAppResponse, g *windlassv1.RegionProgress, v *windlassv1.VersionProgress) string {
	if v.GetVersion() == 0 {
		return "-"
	}
	return versionText(v.Version) + " " + replicasText(r, g, v)
}

// regionState describes where the region is in the rollout, and the failures that count towards a limit.
func regionState(wave *windlassv1.WaveProgress, g *windlassv1.RegionProgress) string {
	text := regionPlace(wave, g)
	if g.UnhealthySince != 0 {
		text += fmt.Sprintf(", %d of %d that were ready are not, %s left", g.WereReady-min(g.WereReady, g.GetNew().GetReady()), g.WereReady,
			durationText(max(0, time.Until(time.UnixMilli(g.UnhealthyUntil)))))
	}
	if g.FailedInstances > 0 && g.FailedInstances < g.FailedLimit {
		text += fmt.Sprintf(", %d failed, limit %d", g.FailedInstances, g.FailedLimit)
	}
	if g.Relapses > 0 && g.Relapses < g.RelapseLimit {
		text += fmt.Sprintf(", became unready %s, limit %d", plural.Count(g.Relapses, "time"), g.RelapseLimit)
	}
	return text
}

func regionPlace(wave *windlassv1.WaveProgress, g *windlassv1.RegionProgress) string {
	text := enumText(g.State, "STATE_")
	if g.WaitsForCapacitySince != 0 {
		return "waits for room for " + ageText(g.WaitsForCapacitySince)
	}
	if g.State == windlassv1.RegionProgress_STATE_ROLLING && g.Step > 0 && g.Step <= g.Steps {
		text = fmt.Sprintf("step %d of %d", g.Step, g.Steps)
		switch {
		case g.WaitsForPromotion:
			text += ", waits for promotion"
		case g.GetApproval().GetMissing() != "" && time.Now().UnixMilli() >= g.StepUntil:
			text += ", waits for approval"
		case g.StepUntil != 0:
			text += ", " + durationText(max(0, time.Until(time.UnixMilli(g.StepUntil)))) + " left"
		}
		return text
	}
	if g.State == windlassv1.RegionProgress_STATE_MOVED {
		switch wave.State {
		case windlassv1.WaveProgress_STATE_BAKING:
			left := time.Until(time.UnixMilli(wave.BakingUntil))
			if left <= 0 && wave.GetApproval().GetMissing() != "" {
				return "waits for approval"
			}
			return "baking, " + durationText(left) + " left"
		case windlassv1.WaveProgress_STATE_DONE:
			return "done"
		default:
		}
	}
	return strings.ReplaceAll(text, "-", " ")
}
