// Package share divides places among tenants, for example places for concurrent calls. A tenant whose calls take long
// leaves places for other tenants.
//
// A tenant may take a place only while it holds fewer places than are free. A tenant that returns no place gets half
// of all places. Two such tenants get a third each, and n tenants get about one part of n+1 parts each. The last part
// stays free. If tenants come one after the other, each takes half of the free places. Their numbers become equal as
// places are returned.
package share

// Places counts the places that tenants hold. It is not safe for concurrent use.
type Places struct {
	most, used int
	by         map[string]int
}

// NewPlaces returns Places with the number most of places. All are free.
func NewPlaces(most int) *Places { return &Places{most: most, by: map[string]int{}} }

// CanTake reports whether the tenant may take another place now.
func (p *Places) CanTake(tenant string) bool { return p.by[tenant] < p.most-p.used }

// Take takes a place for the tenant. It returns false if the tenant may take no place.
func (p *Places) Take(tenant string) bool {
	if !p.CanTake(tenant) {
		return false
	}
	p.used++
	p.by[tenant]++
	return true
}

// GiveBack returns one of the tenant's places.
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
