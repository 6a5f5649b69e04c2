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

// Admission is what is to be known of a workspace to let a call in.
type Admission struct {
	WorkspaceID string
	// Own limits, when they were changed last, and their version: 0 before any.
	Own             Limits
	UpdatedAt       int64
	ResourceVersion int64
	// FullAt is when the bucket of starts is full again, Now when this was read, in
	// unix microseconds on the database's clock, which all processes share.
	FullAt, Now int64
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

// Plus adds up.
func (u Usage) Plus(v Usage) Usage {
	return Usage{
		Apps: u.Apps + v.Apps, Deployments: u.Deployments + v.Deployments, Instances: u.Instances + v.Instances,
		GPUs: u.GPUs + v.GPUs, Rollouts: u.Rollouts + v.Rollouts,
	}
}
