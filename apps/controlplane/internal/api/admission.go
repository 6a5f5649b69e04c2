package api

import (
	"errors"
	"fmt"
	"time"

	"connectrpc.com/connect"

	"github.com/windlass-run/windlass/apps/controlplane/internal/admission"
	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// asked is how a mutation changes an app's claim.
type asked struct {
	// createdIn is the environment of an app that did not exist before.
	createdIn     string
	before, after model.Claim
}

// claims notes the app's new claim. The first call of a mutation also notes it as the claim before the
// change.
func (c *mutation) claims(app model.App, live, next *model.Deployment, rows []model.Topology) {
	claim := admission.Claim(app, live, next, rows)
	claim.Instances += c.pinned.Instances
	claim.GPUs += c.pinned.GPUs
	if c.asked == nil {
		c.asked = &asked{before: claim}
	}
	c.asked.after = claim
}

// alongside notes the app's claim for a mutation that changes further apps. Quotas do not refuse it, because
// it asks for nothing beyond what the workspace already has.
func (c *mutation) alongside() {
	if c.asked != nil {
		c.also = append(c.also, c.asked.after)
		c.grown = c.grown.Grown(c.asked.was(), c.asked.after.Usage())
	}
	c.asked = nil
}

// learned is what a call learned about its workspace's bucket.
type learned struct {
	known   bool
	rate    admission.Rate
	missing time.Duration
}

// admit locks the workspace at the end of a mutation's transaction. It takes a token if the mutation starts
// work, and fails if the mutation would exceed a quota.
func (c *mutation) admit() error {
	if c.asked == nil && !c.starts && len(c.also) == 0 {
		return nil
	}
	have, err := c.LockAdmission(c.workspaceID)
	if errors.Is(err, model.ErrNotFound) {
		return apierr.Missing("", "workspace", c.workspaceID, "It was deleted.")
	}
	if err != nil {
		return fmt.Errorf("lock workspace %s: %w", c.workspaceID, err)
	}
	limits := admission.InForce(c.api.cfg.Limits, have.Own)
	stored := have
	if c.starts {
		if err := c.collectRefusal(c.start(&have, admission.RateOf(limits))); err != nil {
			return err
		}
	}
	if have.Ceiling.Usage = have.Ceiling.Plus(c.grown); !admission.Counted(limits) {
		have.Ceiling = model.Ceiling{} // no limit needs it
	}
	if err := c.enter(&have, limits); err != nil {
		return err
	}
	if have.FullAt == stored.FullAt && have.Ceiling == stored.Ceiling {
		return nil
	}
	if err := c.PutStanding(have); err != nil {
		return fmt.Errorf("store standing of workspace %s: %w", c.workspaceID, err)
	}
	return nil
}

// start takes a token from the locked workspace's bucket.
func (c *mutation) start(have *model.Admission, rate admission.Rate) error {
	fullAt, wait := rate.Take(have.FullAt, have.Now)
	c.learned = learned{true, rate, time.Duration(fullAt-have.Now) * time.Microsecond}
	if wait > 0 {
		return c.refused(tooFast(c.workspaceID, rate, wait))
	}
	if rate.Limited() {
		have.FullAt = fullAt
	}
	return nil
}

// enter checks the asked claim against the limits, and stores the claims.
func (c *mutation) enter(have *model.Admission, limits model.Limits) error {
	if len(c.also) > 0 {
		if err := c.PutClaims(c.also); err != nil {
			return fmt.Errorf("store claims of %d apps: %w", len(c.also), err)
		}
	}
	if c.asked == nil {
		return nil
	}
	if c.asked.createdIn != "" {
		// A call that deletes an environment locks the workspace before it counts the environment's apps.
		if _, err := c.GetEnvironment(c.workspaceID, c.asked.createdIn); errors.Is(err, model.ErrNotFound) {
			return apierr.Missing("", "environment", c.asked.createdIn, "It was deleted.")
		} else if err != nil {
			return fmt.Errorf("read environment %s: %w", c.asked.createdIn, err)
		}
	}
	if c.asked.grows() && admission.Counted(limits) {
		if err := c.grow(have, limits); err != nil {
			return err
		}
	}
	if c.asked.after.Usage().Deployments == 0 {
		return nil
	}
	if err := c.PutClaims([]model.Claim{c.asked.after}); err != nil {
		return fmt.Errorf("store claim of app %s: %w", c.asked.after.AppID, err)
	}
	return nil
}

// grows reports whether the mutation changes the app's usage.
func (q *asked) grows() bool { return q.was() != q.after.Usage() }

func (q *asked) was() model.Usage {
	if q.createdIn != "" {
		return model.Usage{}
	}
	return q.before.Usage()
}

// grow fails if the mutation would exceed a limit. It adds up the workspace only if the ceiling does not show
// that there is room, because the sum covers every app.
func (c *mutation) grow(have *model.Admission, limits model.Limits) error {
	was, now := c.asked.was(), c.asked.after.Usage()
	if admission.Holds(have.Ceiling, have.Now, limits, was, now) {
		have.Ceiling.Usage = have.Ceiling.Grown(was, now)
		return nil
	}
	store := c.PutClaims
	if c.dry != nil {
		store = nil // claims that are not stored would never settle
	}
	others, err := c.api.usage(c, c.workspaceID, c.asked.after.AppID, store)
	if err != nil {
		return err
	}
	have.Ceiling = model.Ceiling{Usage: others.Plus(now), CountedAt: have.Now}
	if r := admission.Check(limits, others, was, now); r != nil {
		return c.collectRefusal(c.refused(beyond(c.workspaceID, r)))
	}
	return nil
}

const (
	// settleAtOnce bounds the specs that are in memory together.
	settleAtOnce = 500
	// settleTries bounds how often usage adds up. Between two sums, only a rollout that just ended can
	// unsettle an app again.
	settleTries = 5
)

// usage adds up the usage of the workspace's apps, except for the app whose id is but. It passes claims that it
// makes anew to store, and adds up again. If store is nil, it adds these claims to the sum instead.
func (a *server) usage(tx Tx, workspaceID, but string, store func([]model.Claim) error) (model.Usage, error) {
	for try := 1; ; try++ {
		u, unsettled, err := tx.UsageOf(workspaceID, but)
		if err != nil {
			return u, fmt.Errorf("add up workspace %s: %w", workspaceID, err)
		}
		if unsettled == 0 {
			return u, nil
		}
		anew, err := a.settle(tx, workspaceID, but, store)
		if err != nil {
			return u, err
		}
		if store == nil || try == settleTries {
			// The sum may be too large: an app that became unsettled since UsageOf is counted twice.
			return model.Usage{
				Apps: u.Apps, Deployments: u.Deployments, Rollouts: u.Rollouts,
				Instances: u.Instances + anew.Instances, GPUs: u.GPUs + anew.GPUs,
			}, nil
		}
	}
}

// settle makes the claims of unsettled apps anew, and adds them up.
func (a *server) settle(tx Tx, workspaceID, but string, store func([]model.Claim) error) (sum model.Usage, err error) {
	for after := ""; ; {
		apps, err := tx.UnsettledApps(workspaceID, but, after, settleAtOnce)
		if err != nil {
			return sum, fmt.Errorf("list unsettled apps of workspace %s: %w", workspaceID, err)
		}
		claims, err := a.claimsOf(tx, apps)
		if err != nil {
			return sum, err
		}
		for _, c := range claims {
			sum = sum.Plus(c.Usage())
		}
		if store != nil {
			if err := store(claims); err != nil {
				return sum, fmt.Errorf("store claims of workspace %s: %w", workspaceID, err)
			}
		}
		if len(apps) < settleAtOnce {
			return sum, nil
		}
		after = apps[len(apps)-1].ID
	}
}

// claimsOf returns the claims of apps, in a number of queries that does not depend on the number of apps.
func (a *server) claimsOf(tx Tx, apps []model.App) ([]model.Claim, error) {
	var ids, rolloutIDs []string
	for _, app := range apps {
		ids = append(ids, app.ID)
		if app.RolloutID != "" {
			rolloutIDs = append(rolloutIDs, app.RolloutID)
		}
	}
	rollouts, err := tx.GetRollouts(rolloutIDs)
	if err != nil {
		return nil, fmt.Errorf("read rollouts: %w", err)
	}
	want, next := map[string]bool{}, map[string]string{}
	for _, r := range rollouts {
		if r.Status == windlassv1.RolloutStatus_ROLLOUT_STATUS_RUNNING && !r.CancelRequested {
			next[r.AppID], want[r.DeploymentID] = r.DeploymentID, true
		}
	}
	for _, app := range apps {
		want[app.LiveDeploymentID] = true
	}
	delete(want, "")
	found, err := tx.GetDeployments(keys(want))
	if err != nil {
		return nil, fmt.Errorf("read deployments: %w", err)
	}
	pinned, err := pinnedUsage(tx, ids)
	if err != nil {
		return nil, err
	}
	deployments := map[string]*model.Deployment{}
	for _, d := range found {
		deployments[d.ID] = &d
	}
	listed, err := tx.ListTopology(ids)
	if err != nil {
		return nil, fmt.Errorf("list topology: %w", err)
	}
	rows := map[string][]model.Topology{}
	for _, t := range listed {
		rows[t.AppID] = append(rows[t.AppID], t)
	}
	rolloutStates := map[string]model.RolloutState{}
	staged, err := tx.GetRolloutStates(ids)
	if err != nil {
		return nil, fmt.Errorf("read rollout states: %w", err)
	}
	for _, s := range staged {
		rolloutStates[s.AppID] = s
	}
	claims := make([]model.Claim, 0, len(apps))
	for _, app := range apps {
		live, newer := deployments[app.LiveDeploymentID], deployments[next[app.ID]]
		claim := admission.Claim(app, live, newer, quotaRows(rolloutStates[app.ID], app, live, newer, rows[app.ID]))
		claim.Instances += pinned[app.ID].Instances
		claim.GPUs += pinned[app.ID].GPUs
		claims = append(claims, claim)
	}
	return claims, nil
}

// refused counts a call that is refused because of a limit.
func (a *server) refused(err error) error {
	a.refusals.WithLabelValues(rpc.DetailOf(err).GetLimit().GetName()).Inc()
	return err
}

// refused counts the refusal, unless this is a dry run.
func (c *mutation) refused(err error) error {
	if c.dry != nil {
		return err
	}
	return c.api.refused(err)
}

// beyond returns the refusal of a call that a quota does not allow.
func beyond(workspaceID string, r *admission.Refusal) error {
	fix := "Scale down or delete what is not needed"
	if r.Limit == "rollouts" {
		fix = "Wait until some have ended"
	}
	return rpc.ErrorWith(connect.CodeResourceExhausted, &windlassv1.ErrorDetail{
		Reason: windlassv1.ErrorReason_ERROR_REASON_QUOTA_EXCEEDED,
		Fix: fmt.Sprintf("%s (`windlass workspace quota` shows the usage), or ask an operator to raise it: `windlass workspace quota %s --%s %d`.",
			fix, workspaceID, r.Limit, r.Used+r.Asked),
		Limit: &windlassv1.LimitDetail{Name: r.Limit, Max: r.Max, Used: r.Used, Asked: r.Asked},
	}, r.String())
}

// tooFast returns the refusal of a call for which the bucket has no token yet.
func tooFast(workspaceID string, rate admission.Rate, wait time.Duration) error {
	return rateLimited("starts_per_minute", rate, wait,
		fmt.Sprintf("Call again after that, with the same idempotency key, or ask an operator to raise it: `windlass workspace quota %s --starts-per-minute %d`.",
			workspaceID, 2*rate.PerMinute()),
		fmt.Sprintf("the workspace may start work %d times a minute and %d times at once, and has done so", rate.PerMinute(), rate.Burst))
}

// rateLimited returns the refusal of a call for which the bucket of that limit has no token before wait is
// over.
func rateLimited(limit string, rate admission.Rate, wait time.Duration, fix, text string) error {
	// Rounded up, so that a call which comes back after wait is not too early.
	wait = (wait + time.Millisecond - 1).Truncate(time.Millisecond)
	return rpc.TooFast(wait, &windlassv1.ErrorDetail{
		Reason: windlassv1.ErrorReason_ERROR_REASON_RATE_LIMITED, Fix: fix,
		Limit: &windlassv1.LimitDetail{Name: limit, Max: rate.PerMinute(), Used: rate.Burst, Asked: 1, RetryAfterMs: wait.Milliseconds()},
	}, fmt.Sprintf("%s: wait %s", text, wait))
}
