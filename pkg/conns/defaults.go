package conns

const (
	// mostTotal is the default of Total where descriptors allow more: connections take memory, too.
	mostTotal = 32 << 10
	// leastTotal is the default of Total where descriptors would allow less.
	leastTotal = 64
)

// Defaults replaces zeros. Total becomes half of the descriptors that the process may have, at most
// 32768: requests need the other half. PerAddress becomes a quarter of Total. A value below 0 means no
// limit.
func (l Limits) Defaults() Limits { return l.defaults(descriptors()) }

func (l Limits) defaults(descriptors int) Limits {
	if l.Total == 0 {
		l.Total = mostTotal
		if descriptors > 0 {
			l.Total = max(min(mostTotal, descriptors/2), leastTotal)
		}
	}
	if l.PerAddress == 0 && l.Total > 0 {
		l.PerAddress = max(l.Total/4, 1)
	}
	return l
}
