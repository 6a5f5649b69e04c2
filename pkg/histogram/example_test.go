package histogram_test

import (
	"fmt"
	"time"

	"github.com/windlass-run/windlass/pkg/histogram"
)

func ExampleCounts() {
	var here, there histogram.Counts
	here[histogram.Bucket(20*time.Millisecond)]++
	there[histogram.Bucket(3*time.Second)]++

	// The packed counts have no zeros at their end.
	received := histogram.Unpack(there.Pack())
	here.Add(&received)
	_, ok := here.Quantile(0.95)
	fmt.Println(here.Total(), ok)
	// Output: 2 true
}
