package accounting

// Share is where an association stands. LevelFS is +Inf where nothing was used; FairShare is the factor from 0 to 1 (of
// users; with the fair tree an account has none, and 0 stands there).
type Share struct {
	ID                                                        uint32
	NormShares, NormUsage, EffectiveUsage, LevelFS, FairShare float64
}
