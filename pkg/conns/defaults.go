package conns

const (
	// mostTotal is the largest default of Total, because connections also take memory.
	mostTotal = 32 << 10
	// leastTotal is the smallest default of Total, even if the limit of descriptors is lower.
	leastTotal = 64
)

// Defaults replaces zeros by defaults. The default of Total is half of the descriptors that the process may
// have, at most 32768, because requests need the other half. The default of PerAddress is a quarter of Total.
// A value below 0 means no limit.
func (l Limits) Defaults() Limits { return l.withDefaults(descriptorLimit()) }

func (l Limits) withDefaults(descriptors int) Limits {
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
