package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/windlass-run/windlass/pkg/plural"
	"github.com/windlass-run/windlass/pkg/pool"
	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// codeWouldNotRun is the exit code of a plan for a version that would not run.
const codeWouldNotRun = 2

func (a *app) planCommand() *cobra.Command {
	var file string
	c := &cobra.Command{
		Use:   "plan -f FILE",
		Short: "Show what deploying the file would do, and whether it would run",
		Long: `Plan reads an app's file as deploy does and changes nothing. It shows what differs
from the live version, the steps of the rollout if everything goes well, how many GPUs
they need in each region at the peak, and how much of the workspace's quotas would be left.

Times include only pauses, checks and bakes. How long replicas take to become ready is not
known: "10m + 2 loads" means after 10 minutes of waiting, and after replicas became ready
twice, one after another. Values of variables are never shown.

Exit code: 0 if the version would run, 2 if it would not run, 1 after an error. With -o json
the answer is a PlanDeployResponse of the API, with every field; "wouldRun" is the verdict,
and "findings" lists obstacles and warnings, each with a "reason".`,
		Example: "  windlass plan -f app.yaml\n  windlass plan -f app.yaml -o json | jq -r '.findings[].reason'",
		Args:    cobra.NoArgs,
		RunE: a.run(func(ctx context.Context, _ []string) error {
			f, err := readAppFile(file, a.Stdin)
			if err != nil {
				return err
			}
			return a.planFile(ctx, f)
		}),
	}
	c.Flags().StringVarP(&file, "file", "f", "", "the app's file, - for standard input")
	mustSucceed(c.MarkFlagRequired("file"))
	mustSucceed(c.MarkFlagFilename("file", "yaml", "yml", "json"))
	return c
}

func (a *app) planFile(ctx context.Context, f *appFile) error {
	path := a.pathOf(f)
	resp, err := a.planOf(ctx, f)
	if err != nil {
		return err
	}
	if err := a.showPlan(path, f, resp); err != nil {
		return err
	}
	if !resp.GetWouldRun() {
		return &ExitError{Code: codeWouldNotRun}
	}
	return nil
}

// planOf asks what a deploy of the file would do. A call that is refused because of the schema's rules gives a plan
// with that obstacle.
func (a *app) planOf(ctx context.Context, f *appFile) (*windlassv1.PlanDeployResponse, error) {
	resp, err := a.clients.apps.PlanDeploy(ctx, &windlassv1.PlanDeployRequest{App: a.pathOf(f), Spec: f.Spec, Rollout: f.Rollout, Freeze: f.Freeze, Scaling: f.Scaling})
	if coded, ok := errors.AsType[*connect.Error](err); ok && coded.Code() == connect.CodeInvalidArgument && rpc.DetailOf(err) != nil {
		detail := rpc.DetailOf(err)
		return &windlassv1.PlanDeployResponse{Findings: []*windlassv1.PlanFinding{{
			Reason: detail.GetReason(), Blocks: true, Field: detail.GetField(), Fix: detail.GetFix(), Message: coded.Message(),
		}}}, nil
	}
	if err != nil {
		return nil, f.explainError(err)
	}
	return resp, nil
}

func (a *app) showPlan(path string, f *appFile, p *windlassv1.PlanDeployResponse) error {
	if a.output == "table" {
		return a.showMessage(p, func(w *tabwriter.Writer) { planTable(w, path, f, p) })
	}
	// The output includes fields that are false, 0 or empty, so that programs find every field.
	data, err := protojson.MarshalOptions{EmitDefaultValues: true}.Marshal(p)
	if err != nil {
		return fmt.Errorf("encode output: %w", err)
	}
	return a.printJSON(data)
}

func planTable(w *tabwriter.Writer, path string, file *appFile, p *windlassv1.PlanDeployResponse) {
	writeRow(w, "App:", path)
	outcome := outcomeText(p)
	if isInvalid(p) {
		outcome = "deploy would refuse it"
	}
	writeRow(w, "Outcome:", outcome)
	verdict := "it would run"
	switch {
	case !p.GetWouldRun():
		verdict = "it would not run"
	case p.GetOutcome() == windlassv1.PlanDeployResponse_OUTCOME_UNCHANGED:
		verdict = "it would be accepted, and nothing moves"
	}
	writeRow(w, "Verdict:", verdict)
	pooled := file.Spec.GetLayout() == windlassv1.Layout_LAYOUT_POOLED
	if pooled {
		writeRow(w, "Pool:", poolText(file.Spec, p.GetLiveVersion() == 0))
	} else if group := groupText(file.Spec); group != "" {
		writeRow(w, "Replica:", group)
	}
	if text := pairsText(file.Spec); text != "" {
		writeRow(w, "Pairs:", text)
	}
	if text := gangText(file.Spec); text != "" {
		writeRow(w, "Gangs:", text)
	}
	if names := stableRoles(file.Spec); len(names) > 0 {
		writeRow(w, "Slots:", "stable of "+strings.Join(names, ", ")+": a successor takes the slot, and an instance stops before its successor starts")
	}
	if len(p.GetSteps()) > 0 {
		writeRow(w, "Waits:", waitsText(p))
	}
	findingsTable(w, file, p)
	changesTable(w, p)
	stepsTable(w, p, pooled)
	regionsTable(w, file.Spec, p, pooled)
	planFeaturesTable(w, p)
	planQuotaTable(w, p)
}

// groupText describes one replica of a spec with several roles or several hosts. It is empty for other specs.
func groupText(s *windlassv1.DeploymentSpec) string {
	switch roles := s.GetRoles(); {
	case len(roles) == 1 && roles[0].GetHosts() > 1:
		return "an instance" + hostsText(roles[0].GetHosts())
	case len(roles) < 2:
		return ""
	}
	var parts []string
	instances := int32(0)
	for _, r := range s.GetRoles() {
		n := max(r.GetInstances(), 1)
		instances += n
		parts = append(parts, fmt.Sprintf("%d %s", n, r.GetName())+hostsText(r.GetHosts()))
	}
	return fmt.Sprintf("a group of %d instances: %s", instances, strings.Join(parts, ", ")) + togetherText(s)
}

// pairsText describes the pairs to which gateways send requests. It is empty without them.
func pairsText(s *windlassv1.DeploymentSpec) string {
	p := s.GetPairing()
	if p.GetEngine() == windlassv1.Pairing_ENGINE_UNSPECIFIED || p.GetEngine() == windlassv1.Pairing_ENGINE_NONE {
		return ""
	}
	prefill, decode, common := cmp.Or(p.GetPrefill(), "prefill"), cmp.Or(p.GetDecode(), "decode"), "replica"
	if s.GetLayout() == windlassv1.Layout_LAYOUT_POOLED {
		common = "version"
	}
	text := fmt.Sprintf("%s and %s of one %s, engine %s", prefill, decode, common, enumText(p.GetEngine(), "ENGINE_"))
	if n := p.GetMinPromptBytes(); n > 0 {
		text += fmt.Sprintf("; prompts of fewer than %d bytes go to %s alone", n, decode)
	}
	return text
}

// gangText describes which pods start all or nothing. It is empty if each pod starts by itself.
func gangText(s *windlassv1.DeploymentSpec) string {
	g := s.GetGang()
	var what string
	switch {
	case g.GetOf() == windlassv1.Gang_OF_GROUP:
		what = "all pods of a replica"
	case g.GetOf() == windlassv1.Gang_OF_NONE:
		return ""
	case slices.ContainsFunc(s.GetRoles(), func(r *windlassv1.RoleSpec) bool { return r.GetHosts() > 1 }):
		what = "all pods of an instance of several hosts"
	default:
		return ""
	}
	timeout := 10 * time.Minute
	if g.GetTimeout() != nil {
		timeout = g.GetTimeout().AsDuration()
	}
	return fmt.Sprintf("%s start or none does; they try again if one has no node for %s", what, durationText(timeout))
}

// stableRoles returns the names of the roles with stable slots.
func stableRoles(s *windlassv1.DeploymentSpec) (names []string) {
	for _, r := range s.GetRoles() {
		if r.GetSlots() == windlassv1.RoleSpec_SLOTS_STABLE {
			names = append(names, r.GetName())
		}
	}
	return names
}

// togetherText names the roles that change as one. It is empty if each role changes by itself.
func togetherText(s *windlassv1.DeploymentSpec) string {
	var names []string
	for _, r := range s.GetRoles() {
		if r.GetTogether() {
			names = append(names, r.GetName())
		}
	}
	last := len(names) - 1
	if last < 1 {
		return ""
	}
	return fmt.Sprintf("; %s and %s change as one", strings.Join(names[:last], ", "), names[last])
}

// poolText describes the pool of a spec. isNew is true for the first version of an app. If the file leaves the number
// of instances out, each role of a first version has one instance. Roles of a later version keep their numbers.
func poolText(s *windlassv1.DeploymentSpec, isNew bool) string {
	var parts []string
	for _, r := range s.GetRoles() {
		count := fmt.Sprint(max(r.GetInstances(), 1))
		if r.GetInstances() == 0 && !isNew {
			count = "the present number of"
		}
		parts = append(parts, count+" "+r.GetName())
	}
	text := strings.Join(parts, ", ") + " in each region"
	if order := s.GetUpdate().GetOrder(); order > windlassv1.PoolUpdate_ORDER_COHERENT {
		text += ", updated in order " + pool.OrderName(s.GetUpdate())
	}
	return text + togetherText(s)
}

// sizeText describes how much of a version runs. A replica of a pooled app is one percent of the pool.
func sizeText(replicas int32, version string, pooled bool) string {
	switch {
	case !pooled:
		return fmt.Sprintf("%d of %s", replicas, version)
	case replicas == pool.Whole:
		return "the pool of " + version
	case replicas == 0:
		return "nothing of " + version
	}
	return fmt.Sprintf("%d%% of the pool as %s", replicas, version)
}

func outcomeText(p *windlassv1.PlanDeployResponse) string {
	var text string
	switch p.GetOutcome() {
	case windlassv1.PlanDeployResponse_OUTCOME_ROLLOUT:
		text = "a rollout of " + versionText(p.Version)
		switch {
		case p.NewApp:
			text += ", the first version of a new app"
		case p.LiveVersion != 0:
			text += " in place of " + versionText(p.LiveVersion)
		}
	case windlassv1.PlanDeployResponse_OUTCOME_SCALED:
		text = versionText(p.Version) + " is scaled: no new version"
	case windlassv1.PlanDeployResponse_OUTCOME_UNCHANGED:
		text = "nothing: the file equals " + versionText(p.Version)
	case windlassv1.PlanDeployResponse_OUTCOME_TAKEN_BACK:
		text = versionText(p.Version) + " stays live, because the file equals it"
	case windlassv1.PlanDeployResponse_OUTCOME_UNSPECIFIED:
		return "deploy would refuse it"
	}
	if p.SupersedesVersion != 0 {
		text += "; the rollout of " + versionText(p.SupersedesVersion) + ", which is in flight, ends"
	}
	return text
}

// isInvalid reports whether something in the file is not valid, so that a deploy of it is refused.
func isInvalid(p *windlassv1.PlanDeployResponse) bool {
	return slices.ContainsFunc(p.GetFindings(), func(f *windlassv1.PlanFinding) bool {
		return f.GetBlocks() && f.GetReason() == windlassv1.ErrorReason_ERROR_REASON_VALIDATION
	})
}

func findingsTable(w *tabwriter.Writer, file *appFile, p *windlassv1.PlanDeployResponse) {
	for i, f := range p.GetFindings() {
		switch {
		case i == 0 && f.Blocks:
			printSection(w, "Obstacles:")
		case !f.Blocks && (i == 0 || p.Findings[i-1].Blocks):
			printSection(w, "Warnings:")
		}
		text := strings.TrimPrefix(f.Reason.String(), "ERROR_REASON_") + ": "
		fmt.Fprintln(w, "  "+text+file.fieldInFile(f.Field, f.Message).Error()) //nolint:errcheck // the writer's Flush returns the error
		if f.Fix != "" {
			fmt.Fprintln(w, "    "+f.Fix) //nolint:errcheck // the writer's Flush returns the error
		}
	}
}

// waitsText describes how long the rollout takes, without the time that replicas take to load.
func waitsText(p *windlassv1.PlanDeployResponse) string {
	gates, approvals := 0, 0
	for _, s := range p.GetSteps() {
		switch {
		case s.GetKind() != windlassv1.PlanStep_KIND_GATE:
		case s.GetApproval() != nil:
			approvals++
		default:
			gates++
		}
	}
	text := durationText(p.GetLasts().AsDuration()) + " in all"
	switch n := p.GetLoads(); n {
	case 0:
	case 1:
		text += ", besides the time that replicas take to load"
	default:
		text += fmt.Sprintf(", besides the time that replicas take to load, %d times in a row", n)
	}
	switch gates {
	case 0:
	case 1:
		text += ", and at 1 step until somebody promotes"
	default:
		text += fmt.Sprintf(", and at %d steps until somebody promotes", gates)
	}
	if approvals > 0 {
		text += ", and until people approve, " + plural.Count(approvals, "time")
	}
	return text
}

// gateText describes what a gate waits for.
func gateText(s *windlassv1.PlanStep, wait string) string {
	approval := strings.TrimPrefix(approvalText(s.Approval), " and ")
	switch {
	case s.Region == "" && s.Wave == "":
		return "the start waits for " + approval
	case s.Region == "":
		return "the end of the wave waits for " + approval
	case s.Wait.AsDuration() > 0:
		return fmt.Sprintf("step %d of %d: waits %s, and for %s", s.Step, s.Steps, wait, approval)
	}
	return fmt.Sprintf("step %d of %d: waits for %s", s.Step, s.Steps, approval)
}

// printSection writes the title of a section. The widths of the columns below do not depend on the text above.
func printSection(w *tabwriter.Writer, title string) { fmt.Fprintf(w, "\n%s\n", title) } //nolint:errcheck // the writer's Flush returns the error

func changesTable(w *tabwriter.Writer, p *windlassv1.PlanDeployResponse) {
	if len(p.GetChanges()) == 0 {
		return
	}
	title := "Changes against " + versionText(p.LiveVersion) + ":"
	if p.LiveVersion == 0 {
		title = "Changes, as nothing is live yet:"
	}
	var lines []string
	for _, c := range p.Changes {
		lines = append(lines, changeLine(c))
	}
	if p.LiveVersion != 0 && aboutOnly(lines) && !makesVersion(p) {
		title = "Differs from " + versionText(p.LiveVersion) + ", and creates no version:"
	}
	printSection(w, title)
	for _, line := range lines {
		fmt.Fprintf(w, "  %s\n", line) //nolint:errcheck // the writer's Flush returns the error
	}
}

func changeLine(c *windlassv1.FieldChange) string {
	var sign, text string
	switch c.Kind {
	case windlassv1.FieldChange_KIND_ADDED:
		sign, text = "+", c.New
	case windlassv1.FieldChange_KIND_REMOVED:
		sign, text = "-", c.Old
	default:
		sign, text = "~", c.Old+" -> "+c.New
	}
	if c.Hidden {
		text = "(values are not shown)"
	}
	return fmt.Sprintf("%s %s: %s", sign, c.Path, firstLine(text))
}

func stepsTable(w *tabwriter.Writer, p *windlassv1.PlanDeployResponse, pooled bool) {
	if len(p.GetSteps()) == 0 {
		return
	}
	counted := "replicas"
	if pooled {
		counted = "versions"
	}
	printSection(w, "Steps, when all goes well ("+counted+", and their share of the traffic):")
	writeRow(w, "AT", "WAVE", "REGION", "WHAT")
	show := func(steps []*windlassv1.PlanStep) {
		for _, s := range steps {
			writeRow(w, atText(s), orDash(s.Wave), orDash(s.Region), stepText(s, pooled))
		}
	}
	for rest := p.Steps; len(rest) > 0; {
		n := max(1, countMoves(rest))
		if n > 2*shownMoves+1 {
			show(rest[:shownMoves])
			writeRow(w, "", "", "", fmt.Sprintf("... %d moves more, one by one", n-2*shownMoves))
			show(rest[n-shownMoves : n])
		} else {
			show(rest[:n])
		}
		rest = rest[n:]
	}
	if p.StepsLeftOut > 0 {
		writeRow(w, "", "", "", "and "+plural.Count(p.StepsLeftOut, "step")+" more")
	}
}

// atText returns when a step begins: "10m + 2 loads".
func atText(s *windlassv1.PlanStep) string {
	at := durationText(s.GetAt().AsDuration())
	switch n := s.GetLoads(); n {
	case 0:
		return at
	case 1:
		return at + " + load"
	default:
		return fmt.Sprintf("%s + %d loads", at, n)
	}
}

// shownMoves is the number of moves that are shown at either end of a series. With many replicas a series is
// long, and its moves are alike. -o json prints all of them.
const shownMoves = 8

// countMoves returns the number of moves at the beginning of steps.
func countMoves(steps []*windlassv1.PlanStep) (n int) {
	for n < len(steps) && steps[n].GetKind() == windlassv1.PlanStep_KIND_MOVE {
		n++
	}
	return n
}

func stepText(s *windlassv1.PlanStep, pooled bool) string {
	wait := durationText(s.GetWait().AsDuration())
	if len(s.Checks) > 0 {
		wait += ", until " + strings.Join(s.Checks, ", ") + " pass"
	}
	switch s.Kind {
	case windlassv1.PlanStep_KIND_WAVE:
		return "the wave begins"
	case windlassv1.PlanStep_KIND_PAUSE:
		return fmt.Sprintf("step %d of %d: waits %s", s.Step, s.Steps, wait)
	case windlassv1.PlanStep_KIND_GATE:
		if s.Approval != nil {
			return gateText(s, wait)
		}
		return fmt.Sprintf("step %d of %d: waits for `windlass rollout promote`", s.Step, s.Steps)
	case windlassv1.PlanStep_KIND_BAKE:
		return "the wave bakes " + wait
	case windlassv1.PlanStep_KIND_LIVE:
		return versionText(s.Versions[0].GetVersion()) + " is live"
	case windlassv1.PlanStep_KIND_RETAIN:
		return versionText(s.Versions[0].GetVersion()) + " is kept for " + wait
	case windlassv1.PlanStep_KIND_MOVE, windlassv1.PlanStep_KIND_UNSPECIFIED:
	}
	var parts []string
	for _, v := range s.Versions {
		parts = append(parts, fmt.Sprintf("%s (%d%%)", sizeText(v.Replicas, versionText(v.Version), pooled), v.Weight))
	}
	if len(parts) == 0 {
		return "nothing runs"
	}
	text := strings.Join(parts, ", ")
	switch {
	case s.KeepsInstances:
		text += ", instances are kept"
	case s.InPlace:
		text += ", in place"
	}
	return text
}

// instancesText returns how many instances of each role the replicas of a spec with several roles have. It is empty for
// one role, and without replicas.
func instancesText(s *windlassv1.DeploymentSpec, replicas int32) string {
	if len(s.GetRoles()) < 2 || replicas == 0 {
		return ""
	}
	var parts []string
	for _, r := range s.GetRoles() {
		parts = append(parts, fmt.Sprintf("%d %s", replicas*max(r.GetInstances(), 1), r.GetName())+hostsText(r.GetHosts()))
	}
	return strings.Join(parts, ", ")
}

func regionsTable(w *tabwriter.Writer, file *windlassv1.DeploymentSpec, p *windlassv1.PlanDeployResponse, pooled bool) {
	if len(p.GetRegions()) == 0 {
		return
	}
	printSection(w, "Regions (now, at the peak, after):")
	header, replicas := "REPLICAS", "%d, %d, %d"
	if pooled {
		header, replicas = "POOL", "%d%%, %d%%, %d%%"
	}
	writeRow(w, "REGION", "STATUS", "WAVE", header, "GPUS", "NEEDED", "FREE", "KIND")
	for _, r := range p.Regions {
		gpus, needed, free, kind := "-", "-", "-", "-"
		if r.GpusPeak > 0 {
			gpus = fmt.Sprintf("%d, %d, %d", r.GpusNow, r.GpusPeak, r.GpusAfter)
		}
		if r.Gpu != nil {
			needed, free = fmt.Sprint(r.GpusNeeded), fmt.Sprint(r.GpusFree)
			kind = kindText(r.Gpu, nil)
		}
		writeRow(w, r.Region, enumText(r.Status, "REGION_STATUS_"), orDash(r.Wave),
			fmt.Sprintf(replicas, r.ReplicasNow, r.ReplicasPeak, r.ReplicasAfter), gpus, needed, free, kind)
		for _, o := range r.GetOtherGpus() {
			writeRow(w, r.Region, "", "", "", "", o.Needed, o.Free, kindText(o.Gpu, o.Roles))
		}
	}
	for _, r := range p.Regions {
		if text := instancesText(file, r.GetReplicasAfter()); text != "" && !pooled {
			writeRow(w, "Instances in "+r.Region+" after: "+text)
		}
		if r.GetSetCapacity() != "" {
			writeRow(w, "Set capacity in "+r.Region+": "+r.GetSetCapacity())
		}
	}
}

// kindText names a kind of GPU, and the roles that ask for it if only some do.
func kindText(g *windlassv1.Gpu, roles []string) string {
	text := strings.TrimSpace(g.GetProduct() + " " + g.GetPool())
	if text == "" {
		text = "any"
	}
	if len(roles) > 0 {
		text += " (" + strings.Join(roles, ", ") + ")"
	}
	return text
}

func planQuotaTable(w *tabwriter.Writer, p *windlassv1.PlanDeployResponse) {
	q, after := p.GetQuota(), p.GetUsageAfter()
	if q == nil {
		return
	}
	printSection(w, "Quota of workspace "+q.GetWorkspaceName()+":")
	writeRow(w, "LIMIT", "NOW", "AFTER", "OF")
	for _, l := range limits {
		if l.used == nil {
			continue
		}
		of := unlimited
		if v := *l.of(q.GetLimits()); v != nil && *v > 0 {
			of = strconv.FormatInt(*v, 10)
		}
		writeRow(w, l.name, strconv.FormatInt(l.used(q.GetUsage()), 10), strconv.FormatInt(l.used(after), 10), of)
	}
	if perMinute := q.GetLimits().GetStartsPerMinute(); perMinute > 0 {
		writeRow(w, "starts-left", q.GetUsage().GetStartsLeft(), after.GetStartsLeft(), fmt.Sprintf("%d a minute", perMinute))
	}
}
