// Package share divides places among tenants, such as calls at the same time, so that a tenant whose calls take
// long leaves places to others.
//
// A tenant takes a place only while it holds fewer places than are free. So a tenant that gives none back has half
// of all places, two such tenants have a third each, and n have about one part in n+1 each. The last part stays
// free. Of tenants that come one after the other, each takes half of what is left, and they even out as places are
// given back.
package share

// Places counts the places that tenants hold. It is not safe for concurrent use.
type Places struct {
	most, used int
	by         map[string]int
}

// NewPlaces returns most places, all of them free.
func NewPlaces(most int) *Places { return &Places{most: most, by: map[string]int{}} }

// CanTake reports whether the tenant may take another place now.
func (p *Places) CanTake(tenant string) bool { return p.by[tenant] < p.most-p.used }

// Take takes a place for the tenant, and reports whether it could.
func (p *Places) Take(tenant string) bool {
	if !p.CanTake(tenant) {
		return false
	}
	p.used++
	p.by[tenant]++
	return true
}

// GiveBack gives a place of the tenant back.
func (p *Places) GiveBack(tenant string) {
	p.used--
	if p.by[tenant]--; p.by[tenant] == 0 {
		delete(p.by, tenant)
	}
}

// Held returns the number of places that the tenant holds.
func (p *Places) Held(tenant string) int { return p.by[tenant] }

// Free returns the number of places that no tenant holds.
func (p *Places) Free() int { return p.most - p.used }
