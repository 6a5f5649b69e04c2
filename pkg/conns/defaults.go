package conns

const (
	// mostTotal is the default of Total where descriptors allow more: connections take memory, too.
	mostTotal = 32 << 10
	// leastTotal is the default of Total where descriptors would allow less.
	leastTotal = 64
)

// Defaults fills in what is 0: Total is half of the descriptors that the process may have, so that there
// are as many for what requests need, and at most 32768; PerAddress is a quarter of Total. Below 0: none.
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
