package api

// Each subject of mutations has a type. They share the mutation, which has the transaction and collects the writes of
// finish. Methods that several subjects need are methods of mutation.
type (
	// versionMutation decides which versions an app runs: it makes, scales and ends versions and their rollouts.
	versionMutation struct{ *mutation }
	// specMutation checks a spec and a policy against rows: regions, secrets and labels that they name.
	specMutation struct{ *mutation }
	// freezeMutation sets, lifts and reads freezes.
	freezeMutation struct{ *mutation }
	// rollbackMutation rolls an app back to an earlier version.
	rollbackMutation struct{ *mutation }
	// pinMutation pins a version next to the live one.
	pinMutation struct{ *mutation }
	// rolloutMutation controls the rollout in flight.
	rolloutMutation struct{ *mutation }
	// regionMutation changes regions, and finds the apps that use them.
	regionMutation struct{ *mutation }
	// secretMutation sets secrets, and rolls apps to their new values.
	secretMutation struct{ *mutation }
	// domainMutation adds, verifies and removes domains and keys of apps.
	domainMutation struct{ *mutation }
	// tenantMutation makes and deletes projects, environments and keys.
	tenantMutation struct{ *mutation }
)

func (c *mutation) versions() versionMutation   { return versionMutation{c} }
func (c *mutation) specs() specMutation         { return specMutation{c} }
func (c *mutation) freezing() freezeMutation    { return freezeMutation{c} }
func (c *mutation) rollbacks() rollbackMutation { return rollbackMutation{c} }
func (c *mutation) pins() pinMutation           { return pinMutation{c} }
func (c *mutation) rollouts() rolloutMutation   { return rolloutMutation{c} }
func (c *mutation) regions() regionMutation     { return regionMutation{c} }
func (c *mutation) secrets() secretMutation     { return secretMutation{c} }
func (c *mutation) domains() domainMutation     { return domainMutation{c} }
func (c *mutation) tenants() tenantMutation     { return tenantMutation{c} }
