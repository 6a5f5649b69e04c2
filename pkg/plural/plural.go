// Package plural writes numbers of things in English.
package plural

import "fmt"

// Count returns a number with its noun: "1 replica", "2 replicas". one is the noun for one, whose plural ends with an
// added s.
func Count[N ~int | ~int32 | ~int64](n N, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %ss", n, one)
}
