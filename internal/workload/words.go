package workload

import "strings"

// Candidates are common English words, most of which are one token each in the
// vocabularies of served models, and the single letters, some of which are so in
// the smallest ones.
func Candidates() []string {
	return strings.Fields(`
the of and to in is was for that on as with by he it at from his an were are which this be had has
first one their its new after but who not they have her she two been other when there all during into
school time may years more most only over city some world would where later up such used many can state
about national out known university united then made also under between while three part family team
than part season including north day south end life high called film work since old people being house
named company both music early second same these county group any now number area album before record
through until each later well second general town game village local series against public play small
public company member home following although system because made game large south order west east water
time book church head form power state white early line history young show black long final born club
left law place support held building station service president another built son what single century
major song king life within british district back best four control line point air road along several
war army among main political design student river force good law late published central party population
military field community important act open near board development education father great research
story down international government original half region free different started love right include
region program top own player rock process college members example similar land report written common
space light without training third hand section human women present total across moved site father men
run green data street sun body language project red course change period six cover market model center
mother office blue current union report rate summer winter study value money care paper heart ship
stage value action art trade night food tree hard cold fire stone gold plan view test key lead list
sea sound rain wind snow bridge island forest mountain garden window door table chair letter
cluster runs node every token server job queue load write
a b c d e f g h i j k l m n o p q r s t u v w x y z`)
}
