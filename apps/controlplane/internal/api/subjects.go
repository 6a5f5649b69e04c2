package api

// One type for each subject of mutations. They share the change, which has the transaction and collects
// what is written last, and what several of them need is the change's.
type (
	// versionChange decides which versions an app runs: it makes, scales and takes back versions and their rollouts.
	versionChange struct{ *change }
	// specChange checks a spec and a policy against rows: regions, secrets and labels that they name.
	specChange struct{ *change }
	// freezeChange sets, lifts and reads freezes.
	freezeChange struct{ *change }
	// rollbackChange goes back to an earlier version.
	rollbackChange struct{ *change }
	// pinChange pins a version next to the live one.
	pinChange struct{ *change }
	// deployChange makes an app's next version.
	deployChange struct{ *change }
	// rolloutChange steers the rollout in flight.
	rolloutChange struct{ *change }
	// regionChange changes regions, and finds out who uses them.
	regionChange struct{ *change }
	// secretChange sets secrets, and rolls apps to their new values.
	secretChange struct{ *change }
	// domainChange adds, verifies and removes domains and keys of apps.
	domainChange struct{ *change }
	// tenantChange makes and deletes projects, environments and keys.
	tenantChange struct{ *change }
)

func (c *change) versions() versionChange   { return versionChange{c} }
func (c *change) specs() specChange         { return specChange{c} }
func (c *change) freezing() freezeChange    { return freezeChange{c} }
func (c *change) rollbacks() rollbackChange { return rollbackChange{c} }
func (c *change) pins() pinChange           { return pinChange{c} }
func (c *change) deploys() deployChange     { return deployChange{c} }
func (c *change) rollouts() rolloutChange   { return rolloutChange{c} }
func (c *change) regions() regionChange     { return regionChange{c} }
func (c *change) secrets() secretChange     { return secretChange{c} }
func (c *change) domains() domainChange     { return domainChange{c} }
func (c *change) tenants() tenantChange     { return tenantChange{c} }
