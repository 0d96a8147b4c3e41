package policy

// PlatformCounts counts the tools of each tier.
func PlatformCounts() map[Tier]int {
	n := map[Tier]int{}
	for _, t := range platform {
		n[t]++
	}
	return n
}
