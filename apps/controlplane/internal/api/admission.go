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

// asked is the change that a mutation makes to an app's claim.
type asked struct {
	// createdIn is the environment's id if the mutation creates the app, else empty.
	createdIn     string
	before, after model.Claim
}

// claimUsage stores the app's claim in c.asked.after. The first call in a mutation, before any change, also sets
// c.asked.before.
func (c *mutation) claimUsage(app model.App, live, next *model.Deployment, rows []model.Topology) {
	claim := admission.Claim(app, live, next, rows)
	claim.Instances += c.pinned.Instances
	claim.GPUs += c.pinned.GPUs
	if c.asked == nil {
		c.asked = &asked{before: claim}
	}
	c.asked.after = claim
}

// exemptClaim moves the app's claim to c.also, for a mutation that changes several apps. Quotas do not refuse these
// claims, because the workspace already has them.
func (c *mutation) exemptClaim() {
	if c.asked != nil {
		c.also = append(c.also, c.asked.after)
		c.grown = c.grown.Grown(c.asked.usageBefore(), c.asked.after.Usage())
	}
	c.asked = nil
}

// learned has the rate and the wait that a call read from its workspace's bucket.
type learned struct {
	known   bool
	rate    admission.Rate
	missing time.Duration
}

// admitUsage locks the workspace at the end of a mutation's transaction. It takes a token if the mutation starts
// work, and fails if the mutation would exceed a quota.
func (c *mutation) admitUsage() error {
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
		have.Ceiling = model.Ceiling{} // no limit uses the ceiling
	}
	if err := c.storeClaims(&have, limits); err != nil {
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

// start takes a token from the bucket of the locked workspace.
func (c *mutation) start(have *model.Admission, rate admission.Rate) error {
	fullAt, wait := rate.Take(have.FullAt, have.Now)
	c.learned = learned{true, rate, time.Duration(fullAt-have.Now) * time.Microsecond}
	if wait > 0 {
		return c.countRefusal(tooFast(c.workspaceID, rate, wait))
	}
	if rate.Limited() {
		have.FullAt = fullAt
	}
	return nil
}

// storeClaims checks c.asked against the limits, and stores the claims.
func (c *mutation) storeClaims(have *model.Admission, limits model.Limits) error {
	if len(c.also) > 0 {
		if err := c.PutClaims(c.also); err != nil {
			return fmt.Errorf("store claims of %d apps: %w", len(c.also), err)
		}
	}
	if c.asked == nil {
		return nil
	}
	if c.asked.createdIn != "" {
		// The environment cannot be deleted after this check, because DeleteEnvironment also locks the workspace.
		if _, err := c.GetEnvironment(c.workspaceID, c.asked.createdIn); errors.Is(err, model.ErrNotFound) {
			return apierr.Missing("", "environment", c.asked.createdIn, "It was deleted.")
		} else if err != nil {
			return fmt.Errorf("read environment %s: %w", c.asked.createdIn, err)
		}
	}
	if c.asked.growsUsage() && admission.Counted(limits) {
		if err := c.requireRoom(have, limits); err != nil {
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

// growsUsage reports whether the mutation changes the app's usage.
func (q *asked) growsUsage() bool { return q.usageBefore() != q.after.Usage() }

func (q *asked) usageBefore() model.Usage {
	if q.createdIn != "" {
		return model.Usage{}
	}
	return q.before.Usage()
}

// requireRoom fails if the mutation would exceed a limit. It computes the sum over all apps of the workspace only if the
// ceiling does not prove that the mutation is within the limits, because the sum is expensive.
func (c *mutation) requireRoom(have *model.Admission, limits model.Limits) error {
	was, now := c.asked.usageBefore(), c.asked.after.Usage()
	if admission.Holds(have.Ceiling, have.Now, limits, was, now) {
		have.Ceiling.Usage = have.Ceiling.Grown(was, now)
		return nil
	}
	store := c.PutClaims
	if c.dry != nil {
		store = nil // a dry run stores no claims, so each further sum would find the same unsettled apps
	}
	others, err := c.api.usageOf(c, c.workspaceID, c.asked.after.AppID, store)
	if err != nil {
		return err
	}
	have.Ceiling = model.Ceiling{Usage: others.Plus(now), CountedAt: have.Now}
	if r := admission.Check(limits, others, was, now); r != nil {
		return c.collectRefusal(c.countRefusal(overQuota(c.workspaceID, r)))
	}
	return nil
}

const (
	// settleAtOnce is the number of apps that are settled together. It bounds the specs in memory.
	settleAtOnce = 500
	// settleTries is the maximum number of sums of usage. Between two sums, only a rollout that just ended can make
	// an app unsettled again.
	settleTries = 5
)

// usageOf returns the sum over the workspace's apps, without the app exceptAppID. It computes new claims for
// unsettled apps, passes them to store, and reads the sum again. If store is nil, it adds the new claims to the sum
// instead.
func (a *server) usageOf(tx Tx, workspaceID, exceptAppID string, store func([]model.Claim) error) (model.Usage, error) {
	for try := 1; ; try++ {
		u, unsettled, err := tx.UsageOf(workspaceID, exceptAppID)
		if err != nil {
			return u, fmt.Errorf("add up workspace %s: %w", workspaceID, err)
		}
		if unsettled == 0 {
			return u, nil
		}
		anew, err := a.settleClaims(tx, workspaceID, exceptAppID, store)
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

// settleClaims computes new claims for unsettled apps, passes them to store unless it is nil, and returns their sum.
func (a *server) settleClaims(tx Tx, workspaceID, exceptAppID string, store func([]model.Claim) error) (sum model.Usage, err error) {
	for after := ""; ; {
		apps, err := tx.UnsettledApps(workspaceID, exceptAppID, after, settleAtOnce)
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
	found, err := tx.GetDeployments(keysOf(want))
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

// countRefusal counts a refusal because of a limit, and returns err.
func (a *server) countRefusal(err error) error {
	a.refusals.WithLabelValues(rpc.DetailOf(err).GetLimit().GetName()).Inc()
	return err
}

// countRefusal counts the refusal, unless this is a dry run.
func (c *mutation) countRefusal(err error) error {
	if c.dry != nil {
		return err
	}
	return c.api.countRefusal(err)
}

// overQuota returns the error of a call that a quota refuses.
func overQuota(workspaceID string, r *admission.Refusal) error {
	fix := "Scale down or delete apps that are not needed"
	if r.Limit == "rollouts" {
		fix = "Wait until some rollouts have ended"
	}
	return rpc.ErrorWith(connect.CodeResourceExhausted, &windlassv1.ErrorDetail{
		Reason: windlassv1.ErrorReason_ERROR_REASON_QUOTA_EXCEEDED,
		Fix: fmt.Sprintf("%s (`windlass workspace quota` shows the usage), or ask an operator to raise the limit: `windlass workspace quota %s --%s %d`.",
			fix, workspaceID, r.Limit, r.Used+r.Asked),
		Limit: &windlassv1.LimitDetail{Name: r.Limit, Max: r.Max, Used: r.Used, Asked: r.Asked},
	}, r.String())
}

// tooFast returns the error of a call that starts work while the workspace's bucket has no token.
func tooFast(workspaceID string, rate admission.Rate, wait time.Duration) error {
	return rateLimited("starts_per_minute", rate, wait,
		fmt.Sprintf("Call again after that, with the same idempotency key, or ask an operator to raise the limit: `windlass workspace quota %s --starts-per-minute %d`.",
			workspaceID, 2*rate.PerMinute()),
		fmt.Sprintf("the workspace may start work %d times a minute and %d times at once, and has done so", rate.PerMinute(), rate.Burst))
}

// rateLimited returns the error of a call whose bucket has no token before wait has passed. limit is the limit's
// name.
func rateLimited(limit string, rate admission.Rate, wait time.Duration, fix, text string) error {
	// wait is rounded up to ms, so that a call after wait is not too early.
	wait = (wait + time.Millisecond - 1).Truncate(time.Millisecond)
	return rpc.TooFast(wait, &windlassv1.ErrorDetail{
		Reason: windlassv1.ErrorReason_ERROR_REASON_RATE_LIMITED, Fix: fix,
		Limit: &windlassv1.LimitDetail{Name: limit, Max: rate.PerMinute(), Used: rate.Burst, Asked: 1, RetryAfterMs: wait.Milliseconds()},
	}, fmt.Sprintf("%s: wait %s", text, wait))
}
