package model

// Limits bound the usage of a workspace and the rate of calls that start work. 0 means no limit. In a workspace's own
// limits, Inherit means the limit of the control plane.
type Limits struct {
	Apps, Deployments, Instances, GPUs, Rollouts int64
	// StartsPerMinute bounds the average rate. StartsBurst is how many such calls may come at once. 0: as many as in a minute.
	StartsPerMinute, StartsBurst int64
}

// Inherit is a limit that a workspace does not set itself.
const Inherit int64 = -1

// NoLimitsOfItsOwn is what a new workspace has: each limit is inherited.
var NoLimitsOfItsOwn = Limits{
	Apps: Inherit, Deployments: Inherit, Instances: Inherit, GPUs: Inherit, Rollouts: Inherit,
	StartsPerMinute: Inherit, StartsBurst: Inherit,
}

// Admission holds the facts about a workspace that decide whether a call is admitted.
type Admission struct {
	WorkspaceID string
	// Own has the workspace's own limits, last changed at UpdatedAt. ResourceVersion is their version, 0 at first.
	Own             Limits
	UpdatedAt       int64
	ResourceVersion int64
	// FullAt is when the bucket of starts is full again. Now is when this was read. Both are in unix
	// microseconds on the database's clock, which all processes share.
	FullAt, Now int64
	// Ceiling is an upper bound of the workspace's usage.
	Ceiling Ceiling
}

// Ceiling is an upper bound of a workspace's usage: the usage that was counted at CountedAt, plus all usage that was
// added since. Usage that ended since is not subtracted.
type Ceiling struct {
	Usage
	// CountedAt is when the usage was counted, on the same clock as Now. 0: it was never counted, and Usage is not
	// valid.
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
