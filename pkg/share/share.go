// Package share divides permits among tenants, for example permits for concurrent calls. A tenant whose calls take long
// leaves permits for other tenants.
//
// A tenant may take a permit only while it holds fewer permits than are free. A tenant that returns no permit gets half
// of all permits. Two such tenants get a third each, and n tenants get about one part of n+1 parts each. The last part
// stays free. If tenants come one after the other, each takes half of the free permits. Their numbers become equal as
// permits are returned.
package share

// Permits counts the permits that tenants hold. It is not safe for concurrent use.
type Permits struct {
	total, used int
	by          map[string]int
}

// NewPermits returns Permits with this number of permits. All are free.
func NewPermits(total int) *Permits { return &Permits{total: total, by: map[string]int{}} }

// CanTake reports whether the tenant may take another permit now.
func (p *Permits) CanTake(tenant string) bool { return p.by[tenant] < p.total-p.used }

// Take takes a permit for the tenant. It returns false if the tenant may take no permit.
func (p *Permits) Take(tenant string) bool {
	if !p.CanTake(tenant) {
		return false
	}
	p.used++
	p.by[tenant]++
	return true
}

// GiveBack returns one of the tenant's permits.
func (p *Permits) GiveBack(tenant string) {
	p.used--
	if p.by[tenant]--; p.by[tenant] == 0 {
		delete(p.by, tenant)
	}
}

// Held returns the number of permits that the tenant holds.
func (p *Permits) Held(tenant string) int { return p.by[tenant] }

// Free returns the number of permits that no tenant holds.
func (p *Permits) Free() int { return p.total - p.used }
