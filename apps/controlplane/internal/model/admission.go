package model

// Limits of a workspace: how much there may be, and how fast work may start. 0 is no
// limit; where limits are a workspace's own, Inherit is the control plane's.
type Limits struct {
	Apps, Deployments, Instances, GPUs, Rollouts int64
	// StartsPerMinute in the long run, StartsBurst at once (0: a minute's).
	StartsPerMinute, StartsBurst int64
}

// Inherit is a limit that a workspace has not of its own.
const Inherit int64 = -1

// NoLimitsOfItsOwn is what a workspace begins with.
var NoLimitsOfItsOwn = Limits{
	Apps: Inherit, Deployments: Inherit, Instances: Inherit, GPUs: Inherit, Rollouts: Inherit,
	StartsPerMinute: Inherit, StartsBurst: Inherit,
}

// Admission holds the facts about a workspace that decide whether a call is admitted.
type Admission struct {
	WorkspaceID string
	// Own limits, when they were changed last, and their version: 0 before any.
	Own             Limits
	UpdatedAt       int64
	ResourceVersion int64
	// FullAt is when the bucket of starts is full again, Now when this was read, in
	// unix microseconds on the database's clock, which all processes share.
	FullAt, Now int64
	// Ceiling is what the workspace has at most.
	Ceiling Ceiling
}

// Ceiling is what a workspace had when it was added up, and all that was asked for since. What
// it gave up meanwhile is still in it, so that it is never too little.
type Ceiling struct {
	Usage
	// CountedAt is when it was added up, on the database's clock as Now; 0: not at all, and
	// Usage says nothing.
	CountedAt int64
}

// Claim is what an app counts for in the quotas, while its live deployment and its
// rollout are those named.
type Claim struct {
	AppID, WorkspaceID          string
	LiveDeploymentID, RolloutID string
	Instances, GPUs             int64
}

// Usage of its app: one app, with what it runs.
func (c Claim) Usage() Usage {
	u := Usage{Apps: 1, Instances: c.Instances, GPUs: c.GPUs}
	if c.RolloutID != "" {
		u.Rollouts = 1
	}
	if c.RolloutID != "" || c.LiveDeploymentID != "" {
		u.Deployments = 1
	}
	return u
}

// Usage is what counts against Limits.
type Usage struct{ Apps, Deployments, Instances, GPUs, Rollouts int64 }

// Grown is u with what an app that was before and is after asks for more.
func (u Usage) Grown(before, after Usage) Usage {
	return Usage{
		Apps: u.Apps + max(after.Apps-before.Apps, 0), Deployments: u.Deployments + max(after.Deployments-before.Deployments, 0),
		Instances: u.Instances + max(after.Instances-before.Instances, 0), GPUs: u.GPUs + max(after.GPUs-before.GPUs, 0),
		Rollouts: u.Rollouts + max(after.Rollouts-before.Rollouts, 0),
	}
}

// Without is u without v, which is part of it.
func (u Usage) Without(v Usage) Usage {
	return Usage{
		Apps: u.Apps - v.Apps, Deployments: u.Deployments - v.Deployments, Instances: u.Instances - v.Instances,
		GPUs: u.GPUs - v.GPUs, Rollouts: u.Rollouts - v.Rollouts,
	}
}

// Plus adds up.
func (u Usage) Plus(v Usage) Usage {
	return Usage{
		Apps: u.Apps + v.Apps, Deployments: u.Deployments + v.Deployments, Instances: u.Instances + v.Instances,
		GPUs: u.GPUs + v.GPUs, Rollouts: u.Rollouts + v.Rollouts,
	}
}
