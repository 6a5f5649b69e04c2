package model

// Limits bound the usage of a workspace and the rate at which work starts. 0 is no limit. In a workspace's
// own limits, Inherit takes the control plane's.
type Limits struct {
	Apps, Deployments, Instances, GPUs, Rollouts int64
	// StartsPerMinute is the average rate. StartsBurst is how many may start at once (0: a minute's).
	StartsPerMinute, StartsBurst int64
}

// Inherit is a limit that a workspace does not set itself.
const Inherit int64 = -1

// NoLimitsOfItsOwn are the own limits of a new workspace.
var NoLimitsOfItsOwn = Limits{
	Apps: Inherit, Deployments: Inherit, Instances: Inherit, GPUs: Inherit, Rollouts: Inherit,
	StartsPerMinute: Inherit, StartsBurst: Inherit,
}

// Admission holds the facts about a workspace that decide whether a call is admitted.
type Admission struct {
	WorkspaceID string
	// Own are its own limits, last changed at UpdatedAt. ResourceVersion is their version, 0 at first.
	Own             Limits
	UpdatedAt       int64
	ResourceVersion int64
	// FullAt is when the bucket of starts is full again. Now is when this was read. Both are in unix
	// microseconds on the database's clock, which all processes share.
	FullAt, Now int64
	// Ceiling is an upper bound of its usage.
	Ceiling Ceiling
}

// Ceiling is an upper bound of a workspace's usage: what was counted at CountedAt, and all that was added
// since. What was given up since is still in it.
type Ceiling struct {
	Usage
	// CountedAt is when the usage was counted, on the same clock as Now. 0: never, and Usage is not valid.
	CountedAt int64
}

// Claim is an app's usage of the quotas. It is valid for the named live deployment and rollout.
type Claim struct {
	AppID, WorkspaceID          string
	LiveDeploymentID, RolloutID string
	Instances, GPUs             int64
}

// Usage returns the claim as the usage of one app.
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

// Grown returns u and the growth of one app's usage from before to after.
func (u Usage) Grown(before, after Usage) Usage {
	return Usage{
		Apps: u.Apps + max(after.Apps-before.Apps, 0), Deployments: u.Deployments + max(after.Deployments-before.Deployments, 0),
		Instances: u.Instances + max(after.Instances-before.Instances, 0), GPUs: u.GPUs + max(after.GPUs-before.GPUs, 0),
		Rollouts: u.Rollouts + max(after.Rollouts-before.Rollouts, 0),
	}
}

// Without returns u without v, which is part of it.
func (u Usage) Without(v Usage) Usage {
	return Usage{
		Apps: u.Apps - v.Apps, Deployments: u.Deployments - v.Deployments, Instances: u.Instances - v.Instances,
		GPUs: u.GPUs - v.GPUs, Rollouts: u.Rollouts - v.Rollouts,
	}
}

// Plus returns the sum of u and v.
func (u Usage) Plus(v Usage) Usage {
	return Usage{
		Apps: u.Apps + v.Apps, Deployments: u.Deployments + v.Deployments, Instances: u.Instances + v.Instances,
		GPUs: u.GPUs + v.GPUs, Rollouts: u.Rollouts + v.Rollouts,
	}
}
