"""The 20 superclasses of CIFAR-100, with five classes each.

Source: A. Krizhevsky, https://www.cs.toronto.edu/~kriz/cifar.html, with the names that the data
set's own files have. Classes are numbered in the order of these names.
"""

SUPERCLASSES = {
    "aquatic_mammals": "beaver dolphin otter seal whale",
    "fish": "aquarium_fish flatfish ray shark trout",
    "flowers": "orchid poppy rose sunflower tulip",
    "food_containers": "bottle bowl can cup plate",
    "fruit_and_vegetables": "apple mushroom orange pear sweet_pepper",
    "household_electrical_devices": "clock keyboard lamp telephone television",
    "household_furniture": "bed chair couch table wardrobe",
    "insects": "bee beetle butterfly caterpillar cockroach",
    "large_carnivores": "bear leopard lion tiger wolf",
    "large_man-made_outdoor_things": "bridge castle house road skyscraper",
    "large_natural_outdoor_scenes": "cloud forest mountain plain sea",
    "large_omnivores_and_herbivores": "camel cattle chimpanzee elephant kangaroo",
    "medium_mammals": "fox porcupine possum raccoon skunk",
    "non-insect_invertebrates": "crab lobster snail spider worm",
    "people": "baby boy girl man woman",
    "reptiles": "crocodile dinosaur lizard snake turtle",
    "small_mammals": "hamster mouse rabbit shrew squirrel",
    "trees": "maple_tree oak_tree palm_tree pine_tree willow_tree",
    "vehicles_1": "bicycle bus motorcycle pickup_truck train",
    "vehicles_2": "lawn_mower rocket streetcar tank tractor",
}
"""Names of the classes of each superclass, in the order of the superclasses' numbers."""


def cifar100_groups() -> tuple[int, ...]:
    """Returns the superclass of each class of CIFAR-100, 100 numbers from 0 to 19."""
    superclass_of = {
        name: number for number, names in enumerate(SUPERCLASSES.values()) for name in names.split()
    }
    return tuple(superclass_of[name] for name in sorted(superclass_of))
